"""Layouts: there and back, what lies beyond the matrix, folding, and the walk over a product's inner dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from glgpt.program.layout import Layout, fold, stacked, texels

Array = NDArray[Any]


@st.composite
def layouts(draw: st.DrawFn, rows: int = 40, cols: int = 70, stacks: bool = True) -> Layout:
    dtype = draw(st.sampled_from(["f32", "f16"]))
    tc = draw(st.sampled_from([2, 4] if dtype == "f16" else [1, 2, 3]))
    tiles = (draw(st.sampled_from([1, 2, 4, 8])), tc)
    stack = draw(st.integers(1, tc + 1)) if stacks and dtype == "f32" else 1
    return Layout(draw(st.integers(1, rows)), draw(st.integers(1, cols)), tiles, dtype, stack)


def numbers(layout: Layout) -> Array:
    """A matrix of whole numbers, none of them zero, which halves hold too."""
    return (1 + np.arange(layout.rows * layout.cols) % 2000).reshape(layout.rows, layout.cols).astype(np.float32)


@given(layouts())
def test_unpacking_gives_back_what_was_packed(layout: Layout) -> None:
    """A value lies in another texel than it is looked for."""
    matrix = numbers(layout)
    packed = layout.pack(matrix)
    assert packed.shape == (layout.layers, layout.lines, layout.width, 4) and packed.nbytes == layout.nbytes
    assert packed.dtype == (np.uint32 if layout.dtype == "f16" else np.float32)
    assert np.array_equal(layout.unpack(packed), matrix)


@given(layouts())
def test_everything_beyond_the_matrix_is_zero(layout: Layout) -> None:
    """Padding adds to a sum."""
    packed = layout.pack(numbers(layout))
    values = packed.view(np.float16) if layout.dtype == "f16" else packed
    assert np.count_nonzero(values) == layout.rows * layout.cols


@given(layouts(), st.integers(1, 9))
def test_bands_of_a_layer_are_the_layer(layout: Layout, band: int) -> None:
    """Uploading in bands leaves a row out or writes it twice."""
    matrix = numbers(layout)
    for index in range(layout.layers):
        bands = [layout.layer(matrix, index, y, band) for y in range(0, layout.lines, band)]
        assert np.array_equal(np.concatenate(bands), layout.layer(matrix, index))


def test_texels_lie_where_the_design_says() -> None:
    """A player that reads the texture by the documented layout finds other columns."""
    matrix = np.arange(4 * 16, dtype=np.float32).reshape(4, 16)
    packed = Layout(4, 16, (2, 2)).pack(matrix)
    assert np.array_equal(packed[1, 0, 1], matrix[0, 12:16])  # tile (0, 1), its second texel
    assert np.array_equal(packed[2, 1, 0], matrix[3, 0:4])  # tile (1, 0)
    below = Layout(4, 48, (1, 3), stack=2).pack(np.arange(4 * 48, dtype=np.float32).reshape(4, 48))
    assert below.shape == (2, 8, 4, 4)
    assert np.array_equal(below[0, 4 + 1, 2], 48 + np.arange(24, 28))  # row 1 of tile 1, its third texel
    assert np.array_equal(below[1, 0, 0], np.arange(32, 36)) and not below[1, 4:].any()  # tile 2, and none below it
    halves = Layout(4, 16, (2, 2), "f16").pack(matrix).view(np.float16)
    assert np.array_equal(halves[1, 0, 1], [*matrix[2, 4:8], *matrix[2, 12:16]])  # x, y: even tile; z, w: odd tile


def test_halves_are_rounded_to_nearest_and_keep_infinities() -> None:
    """A weight beyond float16, or between two halves, is packed as something else."""
    values = np.array([[1 + 2**-11, 1 + 3 * 2**-11, 1e6, -np.inf, np.nan, 2**-24, -0.0]])
    layout = Layout(1, 7, (1, 2), "f16")
    with np.errstate(over="ignore"):
        assert np.array_equal(layout.unpack(layout.pack(values)), values.astype(np.float16), equal_nan=True)


@pytest.mark.parametrize(
    ("rows", "cols", "tiles", "dtype", "stack"),
    [
        (0, 1, (1, 1), "f32", 1),
        (1, 0, (1, 1), "f32", 1),
        (1, 1, (0, 1), "f32", 1),
        (1, 1, (1, 1), "f32", 0),
        (1, 1, (1, 1), "f16", 1),
        (1, 1, (1, 2), "f16", 2),
        (1, 1, (1, 1), "q8", 1),
    ],
)
def test_layouts_that_cannot_be_are_refused(
    rows: int, cols: int, tiles: tuple[int, int], dtype: str, stack: int
) -> None:
    with pytest.raises(ValueError, match="layout"):
        Layout(rows, cols, tiles, dtype, stack)


@given(st.integers(1, 100), st.integers(1, 3000), st.sampled_from([100, 128, 400]), st.sampled_from([8, 32]))
def test_stacked_tiles_fit_in_as_few_layers_as_can_be(rows: int, cols: int, limit: int, width: int) -> None:
    """A stack exceeds the limit, its tiles the width asked for, or a layer more than needed is allocated."""
    layout = stacked(rows, cols, limit, width)
    assert layout.width <= width and layout.lines <= limit and layout.layers <= -(-layout.tiles[1] // (limit // rows))
    assert layout.stack * layout.layers < layout.tiles[1] + layout.layers  # less than a tile of each layer is unused


@given(st.integers(1, 500), st.integers(1, 900), st.sampled_from([16, 32, 100]), st.sampled_from(["f32", "f16"]))
def test_a_fold_fits_and_keeps_groups_of_four_rows(rows: int, cols: int, limit: int, dtype: str) -> None:
    """A folded weight exceeds the limit, or a step over four rows crosses two tiles."""
    pairs = 2 if dtype == "f16" else 1
    layout = fold(texels(rows), cols, limit, pairs, dtype)
    assert layout.width <= limit and layout.height <= limit and layout.tiles[1] % pairs == 0
    assert layout.height % 4 == 0
    if rows <= limit and cols <= 4 * limit:
        assert layout.tiles == (1, pairs)


def test_what_cannot_be_folded_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be folded"):
        fold(9, 4, 2)
    with pytest.raises(ValueError, match="cannot be stacked"):
        stacked(9, 4, 8, 32)


@given(layouts(rows=1, cols=300, stacks=False), st.integers(1, 40), st.sampled_from([8, 32, 512]))
def test_segments_cover_the_inner_dimension_once_and_in_order(x: Layout, cols: int, limit: int) -> None:
    """A product leaves out a term, adds one twice, or multiplies it with another row."""
    weight = fold(texels(x.cols), cols, limit, x.pairs, x.dtype)
    seen: list[list[int]] = [[] for _ in range(x.tiles[1])]
    for layer, x0, starts, n in x.segments(weight):
        assert n > 0 and x0 + n <= x.width and 1 <= len(starts) <= x.pairs
        for p, (tile, row) in enumerate(starts):
            assert 0 <= tile < weight.tiles[0] and row % 4 == 0 and row + 4 * n <= weight.height
            first = (layer * x.pairs + p) * x.width + x0
            assert tile * weight.height + row == 4 * first
            seen[layer * x.pairs + p] += range(first, first + n)
    assert [k for tile in seen for k in tile] == list(range(texels(x.cols) // 4))
