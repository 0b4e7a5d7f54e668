"""Holds the state of one site: its members (`members`), a round's updates (`updates`), the open round (`rounds`).

The package depends on neither sockets nor Flower, and takes the time from a clock that a test can replace. Members and
accepted updates are written to disk before the gateway confirms them to clients, so that a killed gateway loses none.
"""
