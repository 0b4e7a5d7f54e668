"""Defines a session's clients outside browsers: over a WebSocket (`join`), or as a Flower node (`supernode`).

Both kinds of client train their rounds with `worker`, which uses `glgpt.training`.
"""
