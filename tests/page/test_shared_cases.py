"""Checks that Python still gives the results in shared_cases.json."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from shared_cases import FILE, cases

KEPT = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def made() -> dict[str, object]:
    return cases()


@pytest.mark.parametrize("kind", KEPT)
def test_python_gives_the_shared_cases(made: dict[str, object], kind: str) -> None:
    assert same(made[kind], KEPT[kind]), (
        "if both sides have changed, run: PYTHONPATH=tests python tests/page/shared_cases.py"
    )


def same(now: Any, stored: Any) -> bool:
    """True if equal. Floats may differ by 1e-12 of their value: NumPy's exponential depends on the release."""
    if isinstance(now, dict) and isinstance(stored, dict):
        return now.keys() == stored.keys() and all(same(now[key], stored[key]) for key in now)
    if isinstance(now, (list, tuple)) and isinstance(stored, list):
        return len(now) == len(stored) and all(map(same, now, stored))
    if isinstance(now, float) and isinstance(stored, float):
        return math.isclose(now, stored, rel_tol=1e-12, abs_tol=1e-15)
    return bool(now == stored)


def test_none_is_missing(made: dict[str, object]) -> None:
    assert set(made) == set(KEPT)
