"""Products over more tiles than are written out one by one."""

from __future__ import annotations

import pytest
import reference as ref
from cases import Want
from test_ops import EPS, STYLES, Bench, play

from glgpt import ops
from glgpt.gl.device import Device
from glgpt.tensor import Layout


@pytest.mark.parametrize("packed", [False, True], ids=["f32", "f16"])
@pytest.mark.parametrize("inner", [90, 67])
@pytest.mark.parametrize("rows", [4, 8])
def test_a_product_loops_over_many_tiles(device: Device, inner: int, rows: int, packed: bool) -> None:
    """A run of the inner dimension that ends with a tile of either factor, or with the matrix, is too long or short."""

    def record(b: Bench) -> list[Want]:
        x = b.normal("x", 13, inner, Layout(13, inner, (4, 3)))
        w = b.normal("w", 92, 37, Layout(92, 37, (-(-92 // rows), 2), "f16" if packed else "f32"))
        y = ops.matmul(b, x, w, None, "y", tile_cols=2)
        return [Want(y, ref.matmul(b.held["x"], b.held["w"][:inner]))]

    bench = Bench(STYLES["4x8"])
    ((want, matrix, _),) = play(device, bench, record)
    (shader,) = bench.program().shaders.values()
    assert "#define SEGMENTS" not in shader
    ref.within(matrix, want.expected, 2e-5, 2 * EPS)  # as in `cases`; packed weights are held as they are
