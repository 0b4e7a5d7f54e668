"""Holds everything that depends on the internals of Flower (flwr 1.41.0): processes, its Control API, its Fleet API.

The rest of `federation` uses only Flower's public modules: `flwr.app`, `flwr.clientapp` and `flwr.serverapp`. The Fleet
API is young: another version of flwr may require changes here, but nowhere else.
"""
