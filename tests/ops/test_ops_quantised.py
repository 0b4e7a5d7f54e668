"""Tests products with quantised weights of several groups of rows: in tiles, in panels, and with slices of K."""

from __future__ import annotations

import numpy as np
import pytest
from cases.case import Want
from cases.matmul import Into
from helpers import reference as ref
from helpers.op_bench import EPS, STYLES, Bench, Style, play
from helpers.soak import mostly_soak

from glgpt import ops
from glgpt.gl.device import Device, Options
from glgpt.ops.matmul import slices
from glgpt.program.formats import FORMATS, STORED
from glgpt.program.layout import Layout, fold
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits

ROWS = 300  # rows of a weight: nine groups of 32 rows, and an incomplete group
WHOLE = 320  # rows of a weight: ten groups
NAMES = [name for name, fmt in FORMATS.items() if fmt.quantised]
MANY_ROWS = [(cols, dtype, k) for cols, dtype in ((64, "f16"), (70, "f16"), (70, "f32")) for k in (1, 3)]
KEPT = (64, "f16", 3), (70, "f16", 1), (70, "f32", 3)
LIMITS = {"one tile": Limits(), "folded": Limits(212), "four targets": Limits(max_draw_buffers=4)}


def bench(name: str, limits: Limits) -> Bench:
    tiles = (8 if limits.max_draw_buffers == 8 else 4, 2)
    return Bench(Style(tiles, "f16", Options("300 es", packing=False), limits, name))


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("cols", "dtype", "split_k"), mostly_soak(MANY_ROWS, KEPT))
def test_many_rows(device: Device, name: str, limits: str, cols: int, dtype: str, split_k: int) -> None:
    """Fails if a part of K uses the scales of the previous group, or a tile of y reads the wrong tile of w."""

    def record(b: Bench) -> list[Want]:
        x, w = b.normal("x", 13, ROWS - 2, b.many(13, ROWS - 2)), b.weight("w", ROWS - 2, cols)
        y = ops.matmul(b, x, w, None, "y", dtype=dtype, tile_cols=b.style.tiles[1], splits=Into(split_k))
        assert y.layout.tiles[1] % FORMATS[dtype].column_tiles_per_texel == 0
        return [Want(y, ref.matmul(b.held["x"], b.held["w"][: ROWS - 2]))]

    ((want, matrix, _),) = play(device, bench(name, LIMITS[limits]), record)
    ref.within(matrix, want.expected, 1e-4, 2 * FORMATS[dtype].spacing)


def test_products_of_halves_fill_their_own_texels() -> None:
    """Fails if a product with q4 weights has a quarter of the fragments of an f16 product, so that threads idle."""
    for cols, tiles in ((768, 2), (50257, 8)):
        b = bench("q4", Limits())
        with b.entry("test"):
            y = ops.matmul(b, b.normal("x", 16, 64, b.many(16, 64)), b.weight("w", 64, cols), None, "y", dtype="f16")
        assert y.layout.tiles == (8, tiles)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("panels", "slice_texels"), [(True, None), (False, 13)])
@pytest.mark.parametrize("cols", [150, 1536])
def test_one_row(device: Device, name: str, limits: str, panels: bool, slice_texels: int | None, cols: int) -> None:
    """Fails if a slice of K that starts within a group uses another group's scale, or two groups use one scale."""

    def record(b: Bench) -> list[Want]:
        x, w = b.normal("x", 1, ROWS), b.weight("w", ROWS, cols, panels)
        y = ops.combine(b, ops.matvec(b, x, w, "sums", slice_texels, contiguous=4 * panels), "y")
        return [Want(y, ref.matmul(b.held["x"], b.held["w"]))]

    ((want, matrix, _),) = play(device, bench(name, LIMITS[limits]), record)
    ref.within(matrix, want.expected, 1e-4, 8 * EPS)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("panels", "inner"), [(True, ROWS), (True, WHOLE), (False, ROWS)])
def test_few_rows_have_the_sums_of_one(device: Device, name: str, limits: str, panels: bool, inner: int) -> None:
    """Fails if the logits of a text depend on how many texts are decoded with it."""

    def record(b: Bench) -> list[Want]:
        x, w = b.normal("x", 5, inner), b.weight("w", inner, 150, panels)
        one, contiguous = b.given("one", b.held["x"][3:4]), 4 * panels
        y = ops.combine(b, ops.few_rows(b, x, w, "few", contiguous), "y")
        z = ops.combine(b, ops.matvec(b, one, w, "single", contiguous=contiguous), "z")
        return [Want(y, ref.matmul(b.held["x"], b.held["w"])), Want(z, ref.matmul(b.held["one"], b.held["w"]))]

    (want, matrix, _), (_, single, _) = play(device, bench(name, LIMITS[limits]), record)
    ref.within(matrix, want.expected, 1e-4, 8 * EPS)
    assert np.array_equal(matrix[3], single[0])


@pytest.mark.parametrize("panels", [True, False])
def test_a_device_with_four_targets_multiplies_a_row_in_one_pass(device: Device, panels: bool) -> None:
    """Fails if, with four draw buffers, each half of a texel's column tiles needs its own shader.

    Also fails if the bits differ from those with eight draw buffers.
    """

    def record(b: Bench) -> list[Want]:
        x, w = b.normal("x", 1, WHOLE), b.weight("w", WHOLE, 150, panels)
        sums = ops.matvec(b, x, w, "sums", contiguous=4 * panels)
        assert sums.tensor.layout.layers == b.limits.max_draw_buffers
        return [Want(ops.combine(b, sums, "y"), ref.matmul(b.held["x"], b.held["w"]))]

    (four,), (eight,) = (play(device, bench("q4", LIMITS[name]), record) for name in ("four targets", "one tile"))
    assert np.array_equal(four[1], eight[1])


@pytest.mark.parametrize(
    ("name", "inner", "cols", "panel", "slices_of_k"),
    [("q8", 768, 2304, 8, 1), ("q4", 576, 1536, 8, 1), ("q4", 1536, 576, 4, 2), ("q4", 576, 192, 4, 2)],
)
def test_two_threads_share_a_row_of_integers(name: str, inner: int, cols: int, panel: int, slices_of_k: int) -> None:
    """Fails if one thread of software GL draws two thirds of a product, or rows of panels cross cache lines."""
    b = bench(name, Limits())
    with b.entry("test"):
        w = b.weight("w", inner, cols, panels=True)
        sums = ops.matvec(b, b.normal("x", 1, inner), w, "sums", contiguous=4)
    assert (w.layout.panel, sums.defines["SPLIT_K"]) == (panel, slices_of_k)
    (drawn,) = {(p.first_column, p.viewport[0]) for p in b.program().entries["test"].passes}
    assert drawn[0] == sums.first and sums.first % 4 == 0
    parts = 64 - drawn[0] % 64, (drawn[1] - drawn[0] - (64 - drawn[0] % 64)) % 64  # columns in the first and last bin
    assert abs(parts[0] - parts[1]) <= 4


@pytest.mark.parametrize(("name", "limits"), [("q4", "one tile"), ("q8", "one tile"), ("q4", "four targets")])
def test_products_of_a_row_share_their_targets(device: Device, name: str, limits: str) -> None:
    """Fails if products of the same row give other bits than alone, or do not share their output textures.

    Software GL waits between passes with different outputs.
    """
    widths = {"q": 576, "k": 192, "v": 192}

    def record(b: Bench) -> list[Want]:
        x, ws = b.normal("x", 1, 576), [b.weight(f"w.{n}", 576, cols, panels=True) for n, cols in widths.items()]
        together = ops.matvecs(b, x, ws, list(widths), contiguous=4)
        assert len({id(sums.tensor) for sums in together}) == (1 if limits == "one tile" else 3)
        alone = [ops.matvec(b, x, w, f"{n} alone", contiguous=4) for n, w in zip(widths, ws, strict=True)]
        return [Want(ops.combine(b, sums, f"y.{n}"), np.zeros(())) for n, sums in enumerate((*together, *alone))]

    b = bench(name, LIMITS[limits])
    found = [matrix for _, matrix, _ in play(device, b, record)]
    assert all(np.array_equal(found[n], found[n + 3]) and found[n].any() for n in range(3))
    if limits == "one tile":
        q, k, v = b.program().entries["test"].passes[:3]
        assert q.shader != k.shader == v.shader and q.outputs == k.outputs == v.outputs


def test_rows_that_do_not_fit_leave_nothing_out() -> None:
    b = bench("q8", Limits(max_texture_size=32))
    with b.entry("test"):
        sums = ops.matvec(b, b.normal("x", 1, 12), b.weight("w", 12, 30, panels=True), "sums", contiguous=4)
    assert sums.first is None and sums.tensor.layout.width <= 32


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("inner", "cols", "least"), [(768, 768, 8), (768, 3072, 8), (1600, 6400, 16), (6400, 6400, 32)]
)
def test_slices_of_large_weights_are_whole_groups(name: str, inner: int, cols: int, least: int) -> None:
    """Fails if two fragments share a group of integers, or a large product has too many partial sums."""
    layout = fold(inner, cols, Limits().max_texture_size, dtype=name)
    rec = Recorder(Limits())
    columns = layout.row_texels
    _, slice_texels = slices(rec, inner // 4, columns, None, layout)
    assert slice_texels == least
    assert 4 * slice_texels % FORMATS[name].group == 0


@pytest.mark.parametrize(("panels", "inner"), [(True, 84), (True, 96), (False, 84)])
@pytest.mark.parametrize("name", STORED)
def test_formats_of_files_have_all_products(device: Device, name: str, panels: bool, inner: int) -> None:
    """Fails if a product omits a format's minima, or reads float32 scales as float16."""

    def record(b: Bench) -> list[Want]:
        x, w = b.normal("x", 5, inner, b.many(5, inner)), b.weight("w", inner, 70, panels)
        many = ops.matmul(b, x, w, None, "many", dtype="f16", tile_cols=2)
        rows = b.given("rows", b.held["x"])
        one, contiguous = b.given("one", b.held["x"][3:4]), 4 * panels
        few = ops.combine(b, ops.few_rows(b, rows, w, "few", contiguous), "y")
        single = ops.combine(b, ops.matvec(b, one, w, "single", contiguous=contiguous), "z")
        y = ref.matmul(b.held["x"], b.held["w"])
        return [Want(many, y), Want(few, y), Want(single, y[3:4])]

    (many, matrix, _), (few, rows, _), (one, single, _) = play(device, bench(name, LIMITS["one tile"]), record)
    ref.within(matrix, many.expected, 1e-4, 2 * FORMATS["f16"].spacing)
    ref.within(rows, few.expected, 1e-4, 8 * EPS)
    ref.within(single, one.expected, 1e-4, 8 * EPS)
    assert np.array_equal(rows[3], single[0])


@pytest.mark.parametrize("limits", ["one tile", "folded"])
@pytest.mark.parametrize("name", NAMES)
def test_tables_and_folded_norms(device: Device, name: str, limits: str) -> None:
    """Fails if an embedding, or a norm folded into a product, uses the scale of a wrong token, row or group."""

    def record(b: Bench) -> list[Want]:
        ids = b.given("ids", b.rng.integers(0, 90, (7, 1)), role="input")
        tokens, limit = b.weight("wte", ROWS, 90), b.limits.max_texture_size
        positions = b.normal("wpe", 200, ROWS, fold(200, ROWS, limit, dtype=name))
        b.pos, a = 126, b.held
        y = ops.embed(b, ids, tokens, positions, b.stream(7, ROWS))
        gain, bias = b.normal("gain", 1, ROWS), b.normal("bias", 1, ROWS)
        g, h = ops.norm_fold(b, gain, bias, tokens, None, "fold")
        gain_w, bias_w = ref.norm_fold(a["gain"], a["bias"], a["wte"], np.zeros(1))
        expected = ref.embed(a["ids"][:, 0].astype(int), a["wte"], a["wpe"], b.pos)
        return [Want(y, expected), Want(g, gain_w), Want(h, bias_w)]

    for want, matrix, _ in play(device, bench(name, LIMITS[limits]), record):
        ref.within(matrix, want.expected, 1e-4, 2 * EPS)


def test_no_shader_writes_them() -> None:
    b = Bench(STYLES["4x4"])
    with b.entry("test"), pytest.raises(ValueError, match="shaders cannot write"):
        ops.copy(b, b.normal("x", 4, 16), Layout(4, 16, (1, 4), "q8"), "y")
