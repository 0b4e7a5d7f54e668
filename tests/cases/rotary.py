"""Cases of rotary positions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from helpers.reference_llama import rms, rotated
from hypothesis import strategies as st

from cases.case import Array, Case, Taped, VjpCase, Want, rows_at, tall
from cases.draws import DY, FEW, HEADS, ROTATIONS, ROW, shapes
from glgpt import ops
from glgpt.program.layout import Layout, texels

if TYPE_CHECKING:
    from helpers.op_bench import Bench


FREQUENCY = 0.7


def padded_heads(x: Array, heads: int) -> Array:
    """Returns `[T, heads * d]` with each head padded to whole texels."""
    cube = x.reshape(len(x), heads, -1)
    return np.pad(cube, ((0, 0), (0, 0), (0, -cube.shape[2] % 4))).reshape(len(x), -1)


def rotated_heads(matrix: Array, s: SimpleNamespace, positions: Array, sign: float = 1.0) -> Array:
    """Returns padded heads `[T, heads * texels(d)]`, rotated head by head."""
    wide = texels(s.d_head)
    cube = matrix.reshape(len(matrix), s.n_head, wide)[:, :, : s.d_head].transpose(1, 0, 2)
    found = rotated(cube, positions, sign * frequencies(s)).transpose(1, 0, 2) if s.rotate else cube.transpose(1, 0, 2)
    return padded_heads(found.reshape(len(matrix), -1), s.n_head)


def frequencies(s: SimpleNamespace) -> Array:
    return np.array([np.float32(FREQUENCY**i) for i in range(s.d_head // 2)], np.float64)


def rotation(s: SimpleNamespace) -> ops.Rotation:
    return ops.Rotation(s.d_head, frequencies(s).tolist() if s.rotate else ())


def heads_of(b: Bench, s: SimpleNamespace, name: str, rows: int, layout: Layout | None = None) -> Any:
    values = padded_heads(b.rng.standard_normal((rows, s.n_head * s.d_head)), s.n_head)
    return b.given(name, values, layout or b.many(rows, values.shape[1]))


def rotary(b: Bench, s: SimpleNamespace) -> list[Want]:
    tall(b)
    wide = s.n_head * texels(s.d_head)
    x, state = heads_of(b, s, "x", s.rows), b.normal("state", s.pos + s.rows + 2, wide, role="state")
    b.pos, after = s.pos, b.held["state"].copy()
    ops.rotary(b, ops.HeadColumns(x), state, rotation(s), "y")
    after[s.pos : s.pos + s.rows] = rotated_heads(b.held["x"], s, s.pos + np.arange(s.rows))
    return [Want(state, after)]


def rotary_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records the rotated heads of one row, from the partial sums of a product. The product's input is RMS-normed."""
    tall(b)
    wide = s.n_head * texels(s.d_head)
    x, gain = b.normal("a", 1, s.inner), b.normal("gain", 1, s.inner)
    columns = padded_heads(b.rng.standard_normal((texels(s.inner), s.n_head * s.d_head)), s.n_head)
    columns[s.inner :] = 0
    w, state = b.given("w", columns), b.normal("state", s.pos + 3, wide, role="state")
    b.pos, after = s.pos, b.held["state"].copy()
    row = ops.row_sum(b, x, gain, 1e-5, "row")
    product = ops.matvec(b, row.scaled, w, "product", contiguous=s.contiguous)
    ops.rotary(b, ops.HeadColumns(product, normed=(row, None)), state, rotation(s), "y")
    wanted = rms(b.held["a"], b.held["gain"], 1e-5) @ b.held["w"][: s.inner]
    after[s.pos] = rotated_heads(wanted, s, np.array([s.pos]))[0]
    return [Want(state, after)]


def rotary_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records the rotated heads of a few RMS-normed rows, from partial sums. Each row has its own position."""
    tall(b)
    b.row, wide = 2, s.n_head * texels(s.d_head)
    rows, places, _ = rows_at(b, s, 90, 90)
    x, gain = b.normal("x", s.texts, s.inner), b.normal("gain", 1, s.inner)
    w = b.given("w", padded_heads(b.rng.standard_normal((texels(s.inner), s.n_head * s.d_head)), s.n_head))
    state = b.normal("state", 20, wide, role="state")
    row, after = ops.row_sum(b, x, gain, 1e-5, "row", row=None), b.held["state"].copy()
    product = ops.few_rows(b, row.scaled, w, "sums", s.contiguous)
    ops.rotary(b, ops.HeadColumns(product, normed=(row, None)), state, rotation(s), "y", rows)
    wanted = rms(b.held["x"], b.held["gain"], 1e-5) @ b.held["w"][: s.inner]
    after[b.row : b.row + s.texts] = rotated_heads(wanted, s, places)
    return [Want(state, after)]


def rotary_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    rows, wide = s.rows * s.batch, s.n_head * texels(s.d_head)
    x = heads_of(b, s, "x", rows)
    y = b.scratch("y", Layout(rows, wide))
    ops.rotary(b, ops.HeadColumns(x), y, rotation(s), "x.y", s.batch)
    live = padded_heads(np.ones((rows, s.n_head * s.d_head)), s.n_head)
    positions = np.arange(rows) // s.batch
    return Taped((y,), {"x": x}, lambda x: (rotated_heads(x, s, positions),), rigid=True, dy=live)


CASES = {
    "rotary": Case(shapes(**ROTATIONS, rows=st.integers(1, 13), pos=st.sampled_from([4, 0, 900])), rotary, (3e-4, 8)),
    "rotary_row": Case(shapes(**ROTATIONS, **ROW, pos=st.sampled_from([4, 0, 19])), rotary_row, (4e-5, 16)),
    "rotary_rows": Case(shapes(**FEW, **ROTATIONS), rotary_rows, (1e-4, 16)),
}


VJPS = {
    "rotary": VjpCase(shapes(**HEADS | ROTATIONS, **DY), rotary_vjp, (1e-5, 8)),
}
