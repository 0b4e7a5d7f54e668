"""The cases that both languages read are still what Python gives."""

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
        "a change that both sides make: PYTHONPATH=tests python tests/page/shared_cases.py"
    )


def same(ours: Any, theirs: Any) -> bool:
    """Equal; floats to 1e-12, since numpy's exponential differs in its last bit from release to release."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, (list, tuple)) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-12, abs_tol=1e-15)
    return bool(ours == theirs)


def test_none_is_missing(made: dict[str, object]) -> None:
    assert set(made) == set(KEPT)
