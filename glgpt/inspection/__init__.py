"""Inspection and evaluation of models: dumps of activations as pictures, comparison with references, loss on a text.

The entry points are `dump`, `compare`, `evaluate`, `measure_cost` (the cost of a storage format) and `describe` (the
memory a model needs). Depends on `glgpt.inference` and, for pictures, on `glgpt.plots`.
"""
