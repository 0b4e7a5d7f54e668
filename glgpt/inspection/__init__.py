"""Inspects and evaluates models: draws activations, compares models with references, computes the loss on a text.

The entry points are `dump`, `compare`, `evaluate`, `measure_cost` (the error of a number format) and `describe` (the
devices, and the memory that a model needs). The package depends on `glgpt.inference` and, for pictures, on
`glgpt.plots`.
"""
