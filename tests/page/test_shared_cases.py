"""The cases that both languages read are still what Python gives."""

from __future__ import annotations

import json

import pytest
from shared_cases import FILE, cases

KEPT = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def made() -> dict[str, object]:
    return cases()


@pytest.mark.parametrize("kind", KEPT)
def test_python_gives_the_shared_cases(made: dict[str, object], kind: str) -> None:
    assert made[kind] == KEPT[kind], "a change that both sides make: python tests/page/shared_cases.py"


def test_none_is_missing(made: dict[str, object]) -> None:
    assert set(made) == set(KEPT)
