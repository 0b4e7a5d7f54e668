"""Generates JSON schemas for tests of constrained text on the desktop and in the page."""

from __future__ import annotations

from typing import Any

import numpy as np

KINDS = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern"]
VALUES = ["a", 1, None, True, 'é\n"', 2.5]
CONSTANTS = [{"k": [1, "x"]}, "word", 7]
PATTERNS = ["^[a-f0-9]{4}$", "^(yes|no)$", "^[A-Z][a-z]{1,5}$"]


def schemas(count: int) -> list[dict[str, Any]]:
    """Returns random schemas of objects with the property `v`."""
    rng = np.random.default_rng(count)
    return [
        {"type": "object", "properties": {"v": _schema(rng)}, "required": ["v"], "additionalProperties": False}
        for _ in range(count)
    ]


def _schema(rng: np.random.Generator, depth: int = 0) -> dict[str, Any]:
    """Returns a random schema whose valid texts are short."""

    def inner() -> dict[str, Any]:
        return _schema(rng, depth + 1)

    low, few = int(rng.integers(-50, 50)), int(rng.integers(1, 4))
    kind = str(rng.choice([*KINDS, "object", "array", "anyOf"] if depth < 3 else KINDS))
    found: dict[str, Any] = {"type": kind}
    if kind == "string":
        found |= {"minLength": few - 1, "maxLength": 2 * few + 1}
    elif kind in ("integer", "number"):
        found |= {"minimum": low, "maximum": low + int(rng.integers(1, 200))}
    elif kind == "enum":
        found = {"enum": [VALUES[i] for i in rng.permutation(len(VALUES))[:few]]}
    elif kind == "const":
        found = {"const": CONSTANTS[few - 1]}
    elif kind == "pattern":
        found = {"type": "string", "pattern": PATTERNS[few - 1]}
    elif kind == "array":
        found |= {"items": inner(), "minItems": 1, "maxItems": few}
    elif kind == "anyOf":
        found = {"anyOf": [inner(), inner()]}
    elif kind == "object":
        names = [str(name) for name in rng.permutation(["name", "Größe", "b c", "x"])[:few]]
        required = [name for name in names if rng.random() < 0.7]
        found |= {"properties": {name: inner() for name in names}, "required": required, "additionalProperties": False}
    return found
