"""Holds everything that depends on the internals of Flower (flwr 1.41.0): processes, control calls, the Fleet node.

The rest of `federation` uses only Flower's public modules: `flwr.app`, `flwr.clientapp` and `flwr.serverapp`. Flower's
Fleet API is young: another version of flwr may require changes here, but nowhere else.
"""
