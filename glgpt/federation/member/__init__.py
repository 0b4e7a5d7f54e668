"""The clients of a session: a member takes part over a WebSocket (`join`) or as a Flower node (`supernode`).

Both train their rounds with `worker`, which uses `training`.
"""
