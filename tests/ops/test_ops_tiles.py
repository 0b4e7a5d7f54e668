"""Tests products over more tiles than a shader unrolls, products of wide rows, and products that split K."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from cases import EVERY, SHAPE
from cases.case import Array, Want
from helpers import reference as ref
from helpers.op_bench import EPS, STYLES, Bench, held_to, play

from glgpt import ops
from glgpt.gl.device import Device
from glgpt.program.formats import FORMATS
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("inner", [90, 67])
@pytest.mark.parametrize("rows", [4, 8])
def test_a_product_loops_over_many_tiles(device: Device, inner: int, rows: int, dtype: str) -> None:
    """Fails if the part of K that a fragment reads from one tile of x and one tile of w is too long or too short."""

    def record(b: Bench) -> list[Want]:
        x = b.normal("x", 13, inner, Layout(13, inner, (4, 3)))
        tiles = max(2, FORMATS[dtype].column_tiles_per_texel)
        w = b.normal("w", 92, 37, Layout(92, 37, (-(-92 // rows), tiles), dtype))
        y = ops.matmul(b, x, w, None, "y", tile_cols=2)
        return [Want(y, ref.matmul(b.held["x"], b.held["w"][:inner]))]

    bench = Bench(STYLES["4x8"])
    ((want, matrix, _),) = play(device, bench, record)
    assert not any("#define SEGMENTS" in shader for shader in bench.program().shaders.values())
    ref.within(matrix, want.expected, 2e-5, 2 * EPS)  # as in `cases`; the reference uses the packed weights


@pytest.mark.parametrize("style", ["4x4", "4x8", "8x4"])
@pytest.mark.parametrize("case", ["matmul", "norm_fold"])
def test_a_long_sum_keeps_its_digits(device: Device, case: str, style: str) -> None:
    """Fails if a sum over K is rounded after each term.

    Very large activations, as in SmolLM2's MLP, would then round away small terms.
    """
    massive = {3: 2000.0, 1200: -2000.0}  # columns of x; the weights of both are equal, so that their terms cancel

    def enlarge(name: str, array: Array) -> Array:
        if name in ("x", "gain"):
            array[:, list(massive)] = list(massive.values())
        elif name == "w":
            array[1200] = array[3]
        return array

    shape = SimpleNamespace(**SHAPE | {"rows": 16, "inner": 1536, "cols": 512, "act": None})
    shape.bias = shape.residual = shape.shift = False
    bench = Bench(STYLES[style], change=enlarge)
    want, matrix, _ = play(device, bench, lambda b: EVERY[case].record(b, shape))[0]
    x, w = (bench.held[name].astype(np.float32) for name in ("x" if case == "matmul" else "gain", "w"))
    one_by_one = np.zeros_like(matrix, np.float32)
    for k in range(x.shape[1]):
        one_by_one += x[:, k : k + 1] * w[k]
    ours, plain = (float(np.sqrt(np.mean((y - want.expected) ** 2))) for y in (matrix, one_by_one))
    assert ours < 0.7 * plain


@pytest.mark.parametrize("cols", [250, 50, 3])
def test_a_fragment_takes_one_column_of_a_wide_row(device: Device, monkeypatch: pytest.MonkeyPatch, cols: int) -> None:
    """Fails if a product is wrong where a fragment computes one column, as on a GPU for a large vocabulary.

    In other tests, no row is wide enough for this.
    """
    monkeypatch.setattr(sys.modules["glgpt.ops.matmul"], "WIDE", 1)
    shape = SimpleNamespace(**SHAPE | {"contiguous": 0, "cols": cols})
    for played in play(device, Bench(STYLES["4x8"]), lambda b: EVERY["matvec"].record(b, shape)):
        held_to("matvec", *played)


@pytest.mark.parametrize(("rows", "cols"), [(16, 760), (16, 772), (8, 768)])
@pytest.mark.parametrize("splits", [None, ops.GPU_SPLITS], ids=["whole", "split"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_residual_of_another_shape_is_refused(rows: int, cols: int, splits: ops.Splits | None, dtype: str) -> None:
    b = Bench(STYLES["4x8" if dtype == "f32" else "f16 8x8"])
    tiles = b.many(16, 768).tiles
    with b.entry("test"), pytest.raises(ValueError, match="plus"):
        x, w = b.normal("x", 16, 768, b.many(16, 768)), b.weight("w", 768, 768)
        residual = b.normal("r", rows, cols, Layout(rows, cols, (tiles[0], 2)))
        ops.matmul(b, x, w, None, "y", residual=residual, dtype=dtype, tile_cols=tiles[1], splits=splits)


def test_products_that_leave_threads_idle_split_k() -> None:
    """Fails if K is not split for a product that leaves a device idle, or if slices are too short or too large.

    Software OpenGL is idle with too few bins of 64 x 64 pixels, a GPU with too few fragments.
    """
    rec, software, gpu = Recorder(), ops.SOFTWARE_SPLITS, ops.GPU_SPLITS
    assert software.of(rec, 64, 192, 192) == 2  # attn.c_proj of 124M, 512 tokens, kernel 8x4
    assert software.of(rec, 16, 768, 96) == 4  # mlp.c_proj of 124M, 64 tokens, kernel 4x8
    assert software.of(rec, 64, 192, 768) == 1  # mlp.c_fc of 124M, 512 tokens, kernel 8x4
    assert [software.of(rec, 8, inner, 64) for inner in (32, 64, 96)] == [1, 2, 4]
    assert software.of(Recorder(Limits(max_texture_size=256)), 64, 192, 192) == 1
    assert [gpu.of(rec, 8, inner, 96) for inner in (96, 768)] == [4, 8]  # products in f16
    assert [gpu.of(rec, rows, 192, 384) for rows in (8, 16, 32)] == [4, 2, 1]
