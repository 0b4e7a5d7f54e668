"""Defines the documents of an exported page, from which `scripts/generate_schema.py` writes their schemas and types.

An object has no other fields than those of its class, unless the class is marked with `OPEN`. `fields` has the types
that several documents share, and the other modules are named after their documents; `packed` are the programs of a
page without weights.
"""
