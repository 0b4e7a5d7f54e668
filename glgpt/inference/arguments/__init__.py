"""Checks the arguments that callers pass to a model: types, ranges, loading options and names of activations.

`checks` has the basic checks, `loading` those of `load`, `names` selects activations.
Everything is checked before work begins, without a device or a program.
"""
