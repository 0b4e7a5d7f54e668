"""Holds everything that depends on the internals of Flower (flwr 1.41.0): processes, its Control API, its Fleet API.

The rest of `federation` uses only Flower's public modules: `flwr.app`, `flwr.clientapp` and `flwr.serverapp`. If
another version of flwr changes the internals, only this package must be adapted.
"""
