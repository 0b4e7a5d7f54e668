"""Defines the documents of an exported page, from which `scripts/generate_schema.py` writes their schemas and types.

An object has no other fields than those of its class, unless the class is marked with `OPEN`. `fields` defines the
types that several documents share. Each other module is named after its document; `packed` defines the programs of a
page without weights.
"""
