"""Tests that blocks of quantised weights are stored without rounding and decode to the values that GGUF defines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from glgpt.models.parameters import Heads, Parameter
from glgpt.program.formats import ALL, FORMATS, STORED
from glgpt.program.layout import Layout, fold
from glgpt.program.quantised import Blocks, Coding

Array = NDArray[Any]


def coding(name: str) -> Coding:
    found = ALL[name].coding
    assert found
    return found


def halves(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Returns finite float16 numbers of all magnitudes and both signs."""
    return rng.integers(0, 0x7C00, shape).astype(np.uint16).view(np.float16) * rng.choice(np.float16([-1, 1]), shape)


def blocks(name: str, rows: int, cols: int, seed: int = 0) -> Blocks:
    """Returns random blocks. Their integers (levels) take every value of the format."""
    rng, kind = np.random.default_rng(seed), coding(name)
    count, low = -(-rows // kind.group), 0 if kind.unsigned else -(2 ** (kind.bits - 1))
    levels = rng.integers(low, low + 2**kind.bits, (rows, cols))
    minima = halves(rng, (count, cols)) if kind.minimum else None
    return Blocks(kind, levels, halves(rng, (count, cols)), minima)


@given(st.data())
def test_blocks_are_stored_as_they_are(data: st.DataObject) -> None:
    """Fails if a level, scale or minimum is rounded, or stored with another group, in tiles, panels or bands."""
    name = data.draw(st.sampled_from([name for name, fmt in ALL.items() if fmt.quantised]))
    fmt, tiles = ALL[name], data.draw(st.sampled_from([1, 2, 3]))
    rows = data.draw(st.integers(1, 90)) if tiles == 1 else tiles * fmt.group * data.draw(st.integers(1, 2))
    cols, panel = data.draw(st.integers(1, 80)), data.draw(st.integers(0, 3))
    layout = Layout(rows, cols, (tiles, fmt.column_tiles_per_texel), name, panel, 2 if panel else 1)
    held, band = blocks(name, rows, cols, data.draw(st.integers(0, 99))), data.draw(st.integers(1, 50))
    packed = layout.pack(held)
    assert np.array_equal(layout.unpack(packed), held[:, :])
    for i in range(layout.layers):
        bands = [layout.layer(held, i, y, band) for y in range(0, layout.texture_height, band)]
        assert np.array_equal(np.concatenate(bands), packed[i])


@pytest.mark.parametrize("name", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_the_types_of_gguf_have_a_format_that_holds_them(name: str) -> None:
    """Fails if a weight is not the float32 that GGUF defines. Q4_0 is held with minima of -8 times the scale."""
    rng, shape = np.random.default_rng(1), (64, 40)
    d, m = halves(rng, (2, 40)) / np.float16(16), halves(rng, (2, 40))
    each, offset = d.astype("f").repeat(32, axis=0), m.astype("f").repeat(32, axis=0)
    bits = {"q8_0": 8, "q4_0": 4, "q4_1": 4, "q5_0": 5, "q5_1": 5}[name]
    q = rng.integers(0, 2**bits, shape)
    held, wanted = {
        "q8_0": (Blocks(coding("q8"), q - 128, d), (q - 128).astype("f") * each),
        "q4_0": (Blocks(coding("q4"), q, d, np.float16(-8) * d), (q - 8).astype("f") * each),
        "q4_1": (Blocks(coding("q4"), q, d, m), q.astype("f") * each + offset),
        "q5_0": (Blocks(coding("q8"), q - 16, d), (q - 16).astype("f") * each),
        "q5_1": (Blocks(coding("q5_1"), q, d, m), q.astype("f") * each + offset),
    }[name]
    dtype = next(fmt.name for fmt in ALL.values() if fmt.coding == held.coding)
    layout = fold(*shape, 4096, dtype=dtype)
    assert np.array_equal(layout.unpack(layout.pack(held)), wanted) and np.array_equal(held[:, :], wanted)


def test_other_formats_decode_blocks() -> None:
    """Fails if blocks cannot be uploaded in a format other than their own."""
    held = blocks("q4", 50, 20)
    for name in ("f32", "f16", "q8"):
        layout = fold(52, 20, 4096, dtype=name)
        assert np.array_equal(layout.pack(held), layout.pack(held[:, :])), name


def test_tiles_that_would_divide_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks of 32 rows do not fit tiles of 48 rows"):
        Layout(96, 16, (2, 4), "q8").pack(blocks("q8", 96, 16))


def test_the_tiles_of_a_weight_do_not_divide_blocks() -> None:
    for name, rows in (("q8", 14336), ("q4", 8960), ("q4", 4608), ("q6_k", 11008)):
        layout = fold(rows, 64, 2048, dtype=name)
        assert layout.tiles[0] > 1 and layout.height % ALL[name].group == 0
        assert layout.stored_height <= 2048


def test_a_parameter_arranges_blocks() -> None:
    """Fails if blocks are decoded needlessly, or heads that need padding are not padded."""
    held = blocks("q8", 64, 12)
    heads = Heads(0, 8, 8)
    assert Parameter("o", (12, 64), True, True, heads).arrange(held) is held
    wide = Parameter("o", (64, 10), False, True, Heads(1, 2, 5)).arrange(blocks("q8", 64, 10, 3))
    assert isinstance(wide, Blocks) and wide.shape == (64, 16) and not wide[:, 5:8].any()
    assert np.array_equal(wide[:, :].reshape(64, 2, 8)[:, :, :5].reshape(64, 10), blocks("q8", 64, 10, 3)[:, :])
    kinds, sort = blocks("q4", 64, 24, 5), Heads(1, 6, 4, 3)
    ordered = Parameter("o", (64, 24), False, True, sort).arrange(kinds)
    assert isinstance(ordered, Blocks) and np.array_equal(ordered[:, :], sort.sorted(kinds[:, :]))
    tall = Parameter("o", (12, 30), True, True, Heads(0, 6, 5)).arrange(blocks("q8", 30, 12, 4))
    assert isinstance(tall, np.ndarray)
    assert np.array_equal(tall.reshape(6, 8, 12)[:, :5].reshape(30, 12), blocks("q8", 30, 12, 4)[:, :])


def test_slices_of_blocks_are_their_weights() -> None:
    held = blocks("q4", 70, 9)
    assert held.shape == (70, 9)
    assert np.array_equal(held[31:66, 2:8], held[:, :][31:66, 2:8])


@pytest.mark.parametrize(("scales", "minima"), [((2, 5), None), ((3, 4), (3, 4)), ((3, 5), (2, 5)), ((3, 5), (3, 5))])
def test_parts_that_do_not_fit_are_refused(scales: tuple[int, int], minima: tuple[int, int] | None) -> None:
    parts = np.ones(scales), None if minima is None else np.ones(minima)
    with pytest.raises(ValueError, match=r"scales and minima|minimum"):
        Blocks(coding("q8" if minima in (None, (3, 5)) else "q4"), np.zeros((70, 5), np.int8), *parts)


def test_each_coding_has_one_format() -> None:
    codings = [fmt.coding for fmt in ALL.values() if fmt.quantised]
    assert len(set(codings)) == len(codings) == 7 and not STORED.keys() & FORMATS.keys()
