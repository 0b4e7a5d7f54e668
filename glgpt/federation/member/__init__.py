"""The client of a session: `worker` trains rounds, and a member takes part over a socket or as a Flower node.

`join` is the WebSocket client and `supernode` is Flower's ClientApp. Both depend on `worker`, which uses `training`.
"""
