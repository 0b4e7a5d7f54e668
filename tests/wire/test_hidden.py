"""Tests packing hidden states as bytes."""

from __future__ import annotations

import numpy as np
import pytest

from glgpt.errors import GlgptError
from glgpt.wire.hidden import FORMATS, nbytes, pack, unpack

STATES = np.random.default_rng(0).normal(scale=30, size=(5, 24)).astype(np.float32)
STATES[2] = 0


@pytest.mark.parametrize("kind", FORMATS)
def test_they_come_back_as_near_as_the_format_allows(kind: str) -> None:
    data = pack(STATES, kind)
    assert len(data) == nbytes(5, 24, kind)
    found = unpack(data, 5, 24, kind)
    peak = np.abs(STATES).max(axis=1, keepdims=True)
    error = {"f32": 0 * peak, "f16": np.abs(STATES) * 2.0**-11, "int8": peak / 254 * 1.0001}[kind]
    assert (np.abs(found - STATES) <= error).all()
    assert pack(found, kind) == data or kind == "int8"


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_not_finite_or_cut_off_is_refused_on_both_sides(kind: str) -> None:
    for wrong in (np.nan, np.inf):
        with pytest.raises(GlgptError, match="not finite"):
            pack(np.where(STATES > 50, np.float32(wrong), STATES), kind)
    data = pack(STATES, kind)
    for cut in (data[:-1], data + b"x", b""):
        with pytest.raises(GlgptError, match="bytes"):
            unpack(cut, 5, 24, kind)
    infinite = {"f32": "<f4", "f16": "<f2", "int8": "<f4"}[kind]
    broken = np.array([np.inf], infinite).tobytes() + data[len(np.zeros(1, infinite).tobytes()) :]
    with pytest.raises(GlgptError, match="NaN or infinity"):
        unpack(broken, 5, 24, kind)


def test_beyond_the_range_of_halves_f16_says_so() -> None:
    with pytest.raises(GlgptError, match="send them as f32"):
        pack(np.full((1, 4), 70000, np.float32), "f16")
