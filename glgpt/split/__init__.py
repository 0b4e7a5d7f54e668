"""Serves a part (a range of blocks) of a model over WebSockets, on one device or on a Ray cluster.

`server.StageServer` answers clients; it runs the part with an `engine.Engine` (one device) or a `cluster.RayEngine`.
The package uses `inference.stages` to run blocks, and `wire` for the messages.
"""
