"""Connects the parts of a split model, whose blocks run partly on a client and partly on one or several servers.

`client.Connection` (a client's connection), `messages` and `hidden` (hidden states as bytes) are the entry points. The
package is independent of models and devices.
"""
