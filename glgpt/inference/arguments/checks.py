"""Checks callers' arguments: each function returns the value in the required type, or raises ArgumentError.

Only `real` raises no error: for an unusable value, it returns None.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import ArgumentError, written


def integer(name: str, value: Any, least: int = 0, most: int | None = None) -> int:
    """Returns the value, an integer of any type, as an int.

    Raises ArgumentError if it is not an integer, or not in the range from `least` to `most` (None: no maximum).
    """
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or found < least or (most is not None and found > most):
        limits = f"{least} or more" if most is None else f"from {least} to {most}"
        raise ArgumentError(f"{name} is {written(value)}; it must be an integer, {limits}")
    return found


def number(name: str, value: Any, accepts: Callable[[float], bool], allowed: str) -> float:
    """Returns the value as a float. Raises ArgumentError if it is not a number, or if `accepts` rejects it.

    `allowed` describes the accepted values in the error message.
    """
    found = real(value)
    if found is None or not accepts(found):
        raise ArgumentError(f"{name} is {written(value)}; it must be {allowed}")
    return found


def real(value: Any) -> float | None:
    """Returns the value as a float if it is a single number; None for other values and for integers beyond a float."""
    if isinstance(value, (str, bytes)):
        return None
    try:
        return None if np.ndim(value) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def floats(name: str, value: Any) -> NDArray[np.float32]:
    """Returns the value as a float32 array. Raises ArgumentError if numpy cannot convert the value to numbers."""
    try:
        return np.asarray(value, np.float32)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} is {written(value)}; it must be an array of numbers") from None


def flag(name: str, value: Any) -> bool:
    """Returns the value as a bool. Raises ArgumentError unless it is True, False, 0 or 1, of Python or numpy."""
    if isinstance(value, (str, bytes)) or real(value) not in (0, 1):
        raise ArgumentError(f"{name} is {written(value)}; it must be True or False")
    return bool(value)


def items(name: str, value: Any, wanted: str) -> list[Any]:
    """Returns the elements of an iterable. Raises ArgumentError for text, bytes, mappings and non-iterables.

    `wanted` describes the accepted values in the error message.
    """
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ArgumentError(f"{name} is {written(value)}; it must be {wanted}")
    try:
        return list(value)
    except TypeError:  # numpy's arrays without dimensions are of the type Iterable but cannot be iterated
        raise ArgumentError(f"{name} is {written(value)}; it must be {wanted}") from None


def token_ids(value: Any) -> list[int]:
    """Returns a list of token ids as ints. Raises ArgumentError for anything but an iterable of integers."""
    if isinstance(value, (str, bytes)):
        raise ArgumentError(f"{written(value)} is text where token ids are expected; use model.encode(text)")
    ids = items("the prompt", value, "a list of token ids")
    for position, i in enumerate(ids):
        try:
            ids[position] = operator.index(i)
        except TypeError:
            raise ArgumentError(f"id {written(i)} at position {position} is not an integer") from None
    return ids
