"""Reads adapters: small files of changes to a model's weights, which are added while the weights are read."""
