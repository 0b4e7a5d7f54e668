"""Trains one model on many devices, in rounds. Each round ends by combining the devices' updates.

All rounds together form a session. The entry points are `serve` (runs a session), `gateway` (serves the session's
clients) and `member.join` (joins a session as a client). Code that depends on Flower's internals is in `flower`;
clients train with `glgpt.training`.

Flower is a framework for federated learning. Its server, SuperLink, passes messages between the ServerApp, which runs
the rounds, and Flower's nodes. A node is a site (a gateway with its clients) or a supernode (a process of Flower that a
user starts, and that takes part without a gateway).
"""
