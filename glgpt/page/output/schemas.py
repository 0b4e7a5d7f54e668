"""Checks the documents of an exported page against the JSON schemas in `viewer/schema`."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from glgpt.errors import GlgptError
from glgpt.system.files import data_path


def validate(schema: str, document: Any, name: str) -> None:
    """Raises GlgptError if a document does not match `viewer/schema/<schema>.schema.json`."""
    for error in _validator(schema).iter_errors(document):
        raise GlgptError(f"{name}: {error.json_path}: {error.message[:200]}")


@functools.cache
def _validator(schema: str) -> Any:
    """Returns a validator that remembers valid `$ref` instances: thousands of passes and views recur in recordings."""
    import jsonschema
    from referencing import Registry, Resource

    plain = jsonschema.Draft202012Validator
    valid: set[bytes] = set()

    def ref(validator: Any, ref: str, instance: Any, schema: Any) -> Iterator[Any]:
        digest = hashlib.sha256(f"{ref} {json.dumps(instance)}".encode()).digest()
        if digest in valid:
            return
        errors = list(plain.VALIDATORS["$ref"](validator, ref, instance, schema))
        if not errors:
            valid.add(digest)
        yield from errors

    def read(name: str) -> Any:
        return json.loads((data_path("viewer/schema") / f"{name}.schema.json").read_text(encoding="utf-8"))

    shared = read("manifest")  # other schemas refer to its definitions
    registry: Registry[Any] = Registry().with_resource(shared["$id"], Resource.from_contents(shared))
    return jsonschema.validators.extend(plain, {"$ref": ref})(read(schema), registry=registry)
