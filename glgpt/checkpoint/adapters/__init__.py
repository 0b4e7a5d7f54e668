"""Reads adapters: small files that hold changes to a model's weights. `Checkpoint.read` adds these changes."""
