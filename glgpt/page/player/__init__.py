"""The page without weights: recorded programs of common shapes, into which a visitor opens a model's file."""
