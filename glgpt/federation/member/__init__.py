"""Defines the clients of a session. A client takes part over a WebSocket (`join`) or as a Flower node (`supernode`).

Both kinds of client train their rounds with `worker`, which uses `glgpt.training`.
"""
