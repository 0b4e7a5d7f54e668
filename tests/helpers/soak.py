"""Marks those parameters of a test that find few faults beyond the others, so that only `make test-slow` runs them."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def mostly_soak(values: Iterable[Any], kept: Container[Any]) -> list[Any]:
    """Returns a test's parameters. Those that are not in `kept` have the mark `soak`.

    A parameter is a tuple if the test has several arguments.
    """
    return [value if value in kept else _soak(value) for value in values]


def _soak(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.soak)
