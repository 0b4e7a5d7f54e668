"""Defines the JSON documents of an exported page as Python types.

`scripts/generate_schema.py` writes their JSON schemas and TypeScript types. An object has no other fields than those of
its class, unless the class is marked with `OPEN`. `fields` defines the types that several documents share. Each other
module is named after its document; `packed` defines the programs of a page without weights.
"""
