"""Exports the page without weights: it has recorded programs of common shapes, and its visitor opens a model's file."""
