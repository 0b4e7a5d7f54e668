"""The network layer of a split model: messages, hidden states as bytes, and a client's connection to a server.

`client.Connection`, `messages` and `hidden` are the entry points. The package is independent of models and devices.
"""
