"""Serving a part of a model: sessions over one device, and the WebSocket application around them.

It knows sessions and access; it never knows shaders. Its clients are `inference/stages`, the messages are in `wire`.
"""
