"""Trains one model on many devices, in rounds. Each round ends by combining the devices' updates.

All rounds together form a session. The entry points are `serve` (runs a session), `gateway` (serves the session's
clients) and `member.join` (joins a session as a client). Code that depends on Flower's internals is in `flower`;
clients train with `glgpt.training`.
"""
