"""Selects activations by name, by pattern or with a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from glgpt.errors import ArgumentError, written
from glgpt.inference.arguments.checks import items

Names = str | Iterable[str] | Callable[[str], bool] | None  # a name or pattern, several of them, or a filter; None: all


def selected(names: Names, known: Sequence[str], model: str) -> list[str]:
    """Returns the names of the requested activations, in the order of `known`; error messages name the `model`.

    In a pattern such as `h.*.attn.pattern`, `*` matches any characters (dots too), `?` matches one character, and
    `[0-3]` matches one character of a range. A function is called with each name and returns True for the requested
    ones. Raises ArgumentError for a name or pattern that matches nothing.
    """
    if names is None:
        return list(known)
    if callable(names):
        return [name for name in known if names(name)]
    wanted = "a name, a list of names or patterns, or a function of a name"
    found = set[str]()
    for name in [names] if isinstance(names, str) else items("names", names, wanted):
        if not isinstance(name, str):
            raise ArgumentError(f"{written(name)} is not the name of an activation; give a name such as {known[1]!r}")
        matched = {name} if name in known else {other for other in known if fnmatchcase(other, name)}
        if not matched:
            raise ArgumentError(unknown_name(name, known, model))
        found |= matched
    return [name for name in known if name in found]


def unknown_name(name: str, known: Sequence[str], model: str) -> str:
    """Returns the error message for an unknown name, with the closest known ones."""
    close = get_close_matches(name, known, 3) or [known[0], known[1], known[-1]]
    return f"{written(name)} is not an activation of {model}; activations include {', '.join(close)}"
