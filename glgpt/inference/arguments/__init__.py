"""Checks what callers pass to a model: types and ranges of arguments, options of loading, names of activations.

It never knows a device or a program: everything is checked before work begins.
"""
