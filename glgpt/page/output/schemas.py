"""Checks the documents of an exported page against the JSON schemas in `viewer/schema`."""

from __future__ import annotations

import functools
import hashlib
import json
import marshal
from collections.abc import Callable, Iterator
from typing import Any

from glgpt.errors import GlgptError
from glgpt.system.files import data_path


def validate(schema: str, document: Any, name: str) -> None:
    """Raises GlgptError if a document does not match `viewer/schema/<schema>.schema.json`."""
    for error in _validator(schema).iter_errors(document):
        raise GlgptError(f"{name}: {error.json_path}: {error.message[:200]}")


@functools.cache
def _validator(schema: str) -> Any:
    """Returns a validator that checks equal parts of documents only once: passes, views and names recur often."""
    import jsonschema
    from referencing import Registry, Resource

    plain = jsonschema.Draft202012Validator
    valid: set[bytes] = set()

    def digest(part: Any, instance: Any) -> bytes:
        # `part` is a part of a schema. The validator keeps all parts in memory, so `id` identifies a part. For a
        # `$ref`, `part` is the schema that contains it: the value of a `$ref` is a string, and equal strings in two
        # files can refer to different schemas. Version 2 of marshal writes no references, so equal instances give
        # equal bytes. JSON would take longer.
        return hashlib.sha256(marshal.dumps((id(part), instance), 2)).digest()

    def remembering(keyword: str) -> Callable[..., Iterator[Any]]:
        def checked(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
            key = digest(schema if isinstance(wanted, str) else wanted, instance)
            if key in valid:
                return
            errors = list(plain.VALIDATORS[keyword](validator, wanted, instance, schema))
            if not errors:
                valid.add(key)
            yield from errors

        return checked

    def properties(validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
        fields = instance.items() if isinstance(instance, dict) else ()
        keys = {name: digest(wanted[name], field) for name, field in fields if name in wanted}
        new = {name: instance[name] for name, key in keys.items() if key not in valid}
        errors = list(plain.VALIDATORS["properties"](validator, wanted, new, schema))
        if not errors:
            valid.update(keys[name] for name in new)
        yield from errors

    def read(name: str) -> Any:
        return json.loads((data_path("viewer/schema") / f"{name}.schema.json").read_text(encoding="utf-8"))

    shared = read("manifest")  # other schemas refer to its definitions
    registry: Registry[Any] = Registry().with_resource(shared["$id"], Resource.from_contents(shared))
    keywords = {name: remembering(name) for name in ("$ref", "items", "prefixItems")} | {"properties": properties}
    return jsonschema.validators.extend(plain, keywords)(read(schema), registry=registry)
