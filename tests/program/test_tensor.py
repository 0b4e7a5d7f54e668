"""Tests layouts: packing and unpacking, zeros beyond the matrix, folding, and segments of the inner dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from glgpt.program.formats import ALL, FORMATS
from glgpt.program.layout import Layout, View, fold, in_panels, texels
from glgpt.program.quantised import Coding

Array = NDArray[Any]


@st.composite
def layouts(draw: st.DrawFn, rows: int = 300, cols: int = 70, panels: bool = True) -> Layout:
    dtype = draw(st.sampled_from([*ALL]))
    groups = draw(st.integers(1, 3))
    tiles = (draw(st.sampled_from([1, 2, 4, 8])), groups * ALL[dtype].column_tiles_per_texel)
    panel = draw(st.integers(0, 5)) if panels else 0
    stack = draw(st.integers(1, groups + 2)) if panel else 1
    return Layout(draw(st.integers(1, rows)), draw(st.integers(1, cols)), tiles, dtype, panel, stack)


def groups(layout: Layout) -> list[slice]:
    """Returns the rows of each group of a quantised layout."""
    h, step = layout.height, layout.format.group
    tops = [top for tile in range(0, layout.rows, h) for top in range(tile, min(tile + h, layout.rows), step)]
    return [slice(top, min(top + step, top // h * h + h, layout.rows)) for top in tops]


def numbers(layout: Layout) -> Array:
    """Returns a matrix of integers that the format holds exactly. In quantised formats, each group's scale is 1."""
    coding = layout.format.coding
    most = coding.range[1] if coding else 2000
    found = (1 + np.arange(layout.rows * layout.cols) % most).reshape(layout.rows, layout.cols).astype(np.float32)
    if coding:
        for rows in groups(layout):
            found[rows.start] = most
            if coding.minimum and rows.stop - rows.start > 1:
                found[rows.start + 1] = 0
        found *= np.where(np.arange(layout.cols) % 3, 1, -1)
    return found


@given(layouts())
def test_unpacking_gives_back_what_was_packed(layout: Layout) -> None:
    """Fails if a value is packed into another texel than the one from which it is unpacked."""
    matrix = numbers(layout)
    packed = layout.pack(matrix)
    assert (
        packed.shape == (layout.layers, layout.texture_height, layout.texture_width, 4)
        and packed.nbytes == layout.nbytes
    )
    assert packed.dtype == {"uint": np.uint32, "float": np.float32}[layout.format.texture]
    assert np.array_equal(layout.unpack(packed), matrix)


@given(layouts())
def test_everything_beyond_the_matrix_is_zero(layout: Layout) -> None:
    """Fails if padding adds to a sum. In formats with minima, products multiply padding rows by 0."""
    rows, cols = layout.height * layout.tiles[0], 4 * layout.width * layout.tiles[1]
    whole = replace(layout, rows=rows, cols=cols).unpack(layout.pack(numbers(layout)))
    coding = layout.format.coding
    assert not whole[:, layout.cols :].any()
    assert (coding and coding.minimum) or not whole[layout.rows :].any()


@given(layouts(rows=100, cols=40), st.integers(3, 40))
def test_bands_of_a_layer_are_the_layer(layout: Layout, band: int) -> None:
    """Fails if uploading in bands omits a row or writes it twice."""
    matrix = numbers(layout)
    for index in range(layout.layers):
        bands = [layout.layer(matrix, index, y, band) for y in range(0, layout.texture_height, band)]
        assert np.array_equal(np.concatenate(bands), layout.layer(matrix, index))


def test_texels_lie_where_the_design_says() -> None:
    """Fails if a player that follows the documented layout would read other columns."""
    matrix = np.arange(4 * 16, dtype=np.float32).reshape(4, 16)
    packed = Layout(4, 16, (2, 2)).pack(matrix)
    assert np.array_equal(packed[1, 0, 1], matrix[0, 12:16])  # tile (0, 1), its second texel
    assert np.array_equal(packed[2, 1, 0], matrix[3, 0:4])  # tile (1, 0)
    wide = np.arange(4 * 48, dtype=np.float32).reshape(4, 48)
    below = Layout(4, 48, panel=4, stack=2).pack(wide)
    assert below.shape == (2, 8, 4, 4)
    assert np.array_equal(below[0, 4 + 1, 2], wide[1, 24:28])  # row 1 of panel 1, its third texel
    assert np.array_equal(below[1, 0, 0], wide[0, 32:36]) and not below[1, 4:].any()  # panel 2, and none below it
    halves = Layout(4, 16, (2, 2), "f16").pack(matrix).view(np.float16)
    assert np.array_equal(halves[1, 0, 1], [*matrix[2, 4:8], *matrix[2, 12:16]])  # x, y: tile (1, 0); z, w: tile (1, 1)
    both = Layout(4, 48, (1, 2), "f16", panel=4, stack=2).pack(wide).view(np.float16)
    assert both.shape == (1, 8, 4, 8)
    assert np.array_equal(both[0, 4 + 1, 1], [*wide[1, 20:24], *wide[1, 44:48]])  # row 1 of panel 1


@given(layouts(), st.integers(0, 10**6))
def test_a_view_is_the_layout_of_a_texture(layout: Layout, number: int) -> None:
    """Fails if a matrix is unpacked with another layout than it was packed with."""
    view = View.of(layout, f"t{number}")
    assert view.texture == f"t{number}" and {k: v for k, v in vars(view).items() if k != "texture"} == vars(layout)


def test_halves_are_rounded_to_nearest_and_keep_infinities() -> None:
    """Fails if a weight beyond float16, or between two float16 numbers, is not rounded as numpy rounds it."""
    values = np.array([[1 + 2**-11, 1 + 3 * 2**-11, 1e6, -np.inf, np.nan, 2**-24, -0.0]])
    layout = Layout(1, 7, (1, 2), "f16")
    with np.errstate(over="ignore"):
        assert np.array_equal(layout.unpack(layout.pack(values)), values.astype(np.float16), equal_nan=True)


def plain_error(x: Array, coding: Coding) -> Array:
    """Returns each column's squared error if the group's levels divide the range of the column into equal steps."""
    low, high = (x.min(axis=0), x.max(axis=0)) if coding.minimum else (0 * x[0], np.abs(x).max(axis=0))
    scale, low = (
        x.astype("f" if coding.wide else np.float16).astype("f") for x in ((high - low) / coding.range[1], low)
    )
    levels = np.rint((x - low) / np.where(scale > 0, scale, 1)).clip(*coding.range)
    return np.square(levels * scale + low - x).sum(axis=0)


@given(layouts(), st.integers(0, 1000))
def test_weights_are_rounded_no_worse_than_by_their_range(layout: Layout, seed: int) -> None:
    """Fails if a level is not the nearest, or if levels that divide a group's range would have a smaller error."""
    coding = layout.format.coding
    if not coding:
        return
    rng = np.random.default_rng(seed)
    matrix = (rng.standard_normal((layout.rows, layout.cols)) * 10.0 ** rng.integers(-1, 4, layout.cols)).astype("f")
    found = layout.unpack(layout.pack(matrix))
    for rows in groups(layout):
        error = np.square(found[rows] - matrix[rows]).sum(axis=0)
        assert (error <= 1.00001 * plain_error(matrix[rows], coding) + 1e-9).all()


def test_the_search_for_a_minimum_pays() -> None:
    """Fails if scale and minimum are not optimised. In q4, this reduces the increase of a model's loss by half."""
    matrix = np.random.default_rng(0).standard_normal((32, 4096)).astype("f")
    coding = FORMATS["q4"].coding
    assert coding
    levels, scales, minima = coding.quantise(matrix[None])
    assert minima is not None
    error = np.square(levels[0] * scales[0] + minima[0] - matrix).sum()
    assert error < 0.85 * plain_error(matrix, coding).sum()


@pytest.mark.parametrize("name", ["q8", "q4"])
def test_a_group_that_cannot_be_scaled_is_zero_or_no_number(name: str) -> None:
    """Fails if a NaN, an infinity or a weight beyond float16 becomes finite, or reaches another group."""
    matrix = np.full((64, 8), 127, np.float32)
    matrix[3, 0], matrix[4, 1], matrix[:32, 2], matrix[:, 3], matrix[5, 4] = np.nan, -np.inf, 1e-9, 0, 1e7
    found = (layout := Layout(64, 8, (1, 8), name)).unpack(layout.pack(matrix))
    assert np.isnan(found[:32, [0, 1, 4]]).all() and (found[:32, 2] == 0).all() and (found[:, 3] == 0).all()
    assert np.array_equal(found[32:, :3], matrix[32:, :3]) and np.array_equal(found[:, 5:], matrix[:, 5:])


@pytest.mark.parametrize(
    ("rows", "cols", "tiles", "dtype", "panel", "stack"),
    [
        (0, 1, (1, 1), "f32", 0, 1),
        (1, 0, (1, 1), "f32", 0, 1),
        (1, 1, (0, 1), "f32", 0, 1),
        (1, 1, (1, 1), "f32", 1, 0),
        (1, 1, (1, 1), "f32", -1, 1),
        (1, 1, (1, 1), "f32", 0, 2),
        (1, 1, (1, 1), "f16", 0, 1),
        (1, 1, (1, 2), "q8", 0, 1),
        (1, 1, (1, 4), "q4", 0, 1),
        (1, 1, (1, 1), "f8", 0, 1),
    ],
)
def test_layouts_that_cannot_be_are_refused(
    rows: int, cols: int, tiles: tuple[int, int], dtype: str, panel: int, stack: int
) -> None:
    with pytest.raises(ValueError, match="layout"):
        Layout(rows, cols, tiles, dtype, panel, stack)


@given(
    st.integers(1, 100),
    st.integers(1, 3000),
    st.sampled_from([100, 128, 400]),
    st.sampled_from([8, 32]),
    st.sampled_from([*ALL]),
)
def test_panels_fit_in_as_few_layers_as_can_be(rows: int, cols: int, limit: int, width: int, dtype: str) -> None:
    """Fails if a stack exceeds the limit, a panel is wider than requested, or a layer is wasted."""
    high = Layout(rows, 1, (1, ALL[dtype].column_tiles_per_texel), dtype).stored_height
    if high > limit:
        with pytest.raises(ValueError, match="stacked"):
            in_panels(rows, cols, limit, width, dtype)
        return
    layout = in_panels(rows, cols, limit, width, dtype)
    count = layout.groups * layout.panels
    assert layout.panel <= width and layout.texture_height <= limit and layout.layers <= -(-count // (limit // high))
    assert layout.stack * layout.layers < count + layout.layers  # each layer wastes less than a panel
    assert layout.tiles == fold(rows, cols, limit, dtype=dtype).tiles  # products have the same tiles as without panels


@given(st.integers(1, 500), st.integers(1, 900), st.sampled_from([24, 32, 100]), st.sampled_from([*ALL]))
def test_a_fold_fits_and_keeps_groups_of_four_rows(rows: int, cols: int, limit: int, dtype: str) -> None:
    """Fails if a folded weight exceeds the limit, or a group of four rows spans two tiles."""
    shared = ALL[dtype].column_tiles_per_texel
    layout = fold(texels(rows), cols, limit, dtype=dtype)
    assert layout.width <= limit and layout.stored_height <= limit and layout.tiles[1] % shared == 0
    assert layout.height % 4 == 0
    if Layout(texels(rows), 1, (1, shared), dtype).stored_height <= limit and cols <= 4 * limit:
        assert layout.tiles == (1, shared)


def test_what_cannot_be_folded_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be folded"):
        fold(9, 4, 2)
    with pytest.raises(ValueError, match="cannot be stacked"):
        in_panels(9, 4, 8, 32)


@given(layouts(rows=1, cols=300, panels=False), st.integers(1, 40), st.sampled_from([24, 32, 512]))
def test_segments_cover_the_inner_dimension_once_and_in_order(x: Layout, cols: int, limit: int) -> None:
    """Fails if a product omits a term, adds a term twice, or multiplies a value by a wrong row of the weight."""
    shared = x.format.column_tiles_per_texel
    weight = fold(texels(x.cols), cols, limit, dtype=x.dtype)
    seen: list[list[int]] = [[] for _ in range(x.tiles[1])]
    for layer, x0, starts, n in x.segments(weight):
        assert n > 0 and x0 + n <= x.width and 1 <= len(starts) <= shared
        for p, (tile, row) in enumerate(starts):
            assert 0 <= tile < weight.tiles[0] and row % 4 == 0 and row + 4 * n <= weight.height
            first = (layer * shared + p) * x.width + x0
            assert tile * weight.height + row == 4 * first
            seen[layer * shared + p] += range(first, first + n)
    assert [k for tile in seen for k in tile] == list(range(texels(x.cols) // 4))
