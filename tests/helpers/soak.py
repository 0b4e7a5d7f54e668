"""Marks test parameters that repeat others, so that they run only in `make test-slow`."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def mostly_soak(values: Iterable[Any], kept: Container[Any]) -> list[Any]:
    """Returns parameters of a test, marked `soak` unless they are in `kept`. A tuple has a value per argument."""
    return [value if value in kept else _soak(value) for value in values]


def _soak(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.soak)
