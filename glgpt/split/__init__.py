"""Serving a part of a model: sessions over one device, and the WebSocket application around them."""
