"""Holds the state of one site: its members (`members`), a round's updates (`updates`), the open round (`rounds`).

The package does not depend on sockets or Flower. A test can replace its clock. Members and accepted updates are written
to disk before the gateway confirms them to clients, so that a killed gateway loses none.
"""
