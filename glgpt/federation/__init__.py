"""Trains one model on many devices: a session's rounds, the gateway for browsers, and the client that joins a session.

The entry points are `serve` (runs a session), `gateway` (serves its clients) and `member.join` (joins as a client). It
uses Flower through `flower`; `training` takes the training steps.
"""
