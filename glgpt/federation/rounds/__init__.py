"""Keeps the state of one site: `members` who may send updates, `updates` that a round has, `rounds` when it closes.

It is independent of sockets and of Flower: a clock supplies the time, and one thread makes all calls. Members and
accepted updates are written to disk before they are confirmed, so that a killed gateway loses nothing.
"""
