"""Defines the clients that run outside browsers: `join` uses a WebSocket, and `supernode` is a Flower node.

Both kinds of client train their rounds with `worker`, which uses `glgpt.training`.
"""
