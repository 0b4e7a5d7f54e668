"""Cases of layer norms and RMS norms, of one row or many, and folded into products."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from helpers import reference as ref
from helpers.reference_llama import rms, silu
from hypothesis import strategies as st

from cases.case import Array, Case, Taped, VjpCase, Want, tall
from cases.draws import COLS, DY, EPS, FEW, FLAG, MATRIX, PRODUCT, ROW, WIDE, shapes
from cases.matmul import product, summed
from glgpt import ops
from glgpt.program.layout import Layout

if TYPE_CHECKING:
    from helpers.op_bench import Bench


def moments_of(matrix: Array) -> Array:
    """Returns (mean, sum of squared deviations) of each row, from the moments of its slices."""
    m = matrix.reshape(len(matrix), -1, 4).astype(np.float64)
    count = m[..., 2].sum(axis=1)
    mean = (m[..., 0] * m[..., 2]).sum(axis=1) / count
    squares = (m[..., 1] + m[..., 2] * (m[..., 0] - mean[:, None]) ** 2).sum(axis=1)
    return np.stack([mean, squares], axis=1)


def norm(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))
    gain, bias, a = b.normal("gain", 1, s.cols), b.normal("bias", 1, s.cols), b.held
    y = ops.norm(b, x, gain, bias, 1e-5, b.many(s.rows, s.cols), "y")
    stats = np.stack(ref.moments(a["x"]), axis=1)
    return [
        Want(y, ref.norm(a["x"], a["gain"], a["bias"], 1e-5)),
        Want(b.seen["y.stats"], stats, moments_of, bare=True),
    ]


def row_sum(b: Bench, s: SimpleNamespace) -> list[Want]:
    row, more = s.row % s.rows, ()
    layout = b.stream(s.rows, s.cols) if s.rows > 1 else Layout(1, s.cols, (1, s.tiles))
    x, gain = b.normal("x", s.rows, s.cols, layout), b.normal("gain", 1, s.cols)
    if s.shift:
        more = (product(b, s, s.cols).plus(b.normal("shift", 1, s.cols)),)
    y, b.row, a = ops.row_sum(b, x, gain, 1e-5, "y", *more, row="row" if s.named else row), row, b.held
    total = a["x"][row : row + 1] + (summed(b, s) + a["shift"] if s.shift else 0)
    stats = np.stack(ref.moments(total), axis=1)
    return [Want(y.x, total), Want(y.scaled, total * a["gain"]), Want(y.moments, stats, moments_of, bare=True)]


def norm_fold(b: Bench, s: SimpleNamespace) -> list[Want]:
    gain, bias, w = b.normal("gain", 1, s.inner), b.normal("bias", 1, s.inner), b.weight("w", s.inner, s.cols)
    g, h = ops.norm_fold(b, gain, bias, w, b.normal("shift", 1, s.cols) if s.shift else None, "fold")
    a = b.held
    gain_w, bias_w = ref.norm_fold(a["gain"], a["bias"], a["w"][: s.inner], a.get("shift", np.zeros(1)))
    return [Want(g, gain_w), Want(h, bias_w)]


def rms_norm(b: Bench, s: SimpleNamespace) -> list[Want]:
    x, gain = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols)), b.normal("gain", 1, s.cols)
    y = ops.rms_norm(b, x, gain, 1e-5, b.many(s.rows, s.cols), "y")
    return [Want(y, rms(b.held["x"], b.held["gain"], 1e-5))]


def rms_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records one row as in decoding: a residual sum, its RMS norm, and a gated product without biases."""
    x, gain = b.normal("x", 1, s.inner), b.normal("gain", 1, s.inner)
    w, v = b.weight("w", s.inner, s.cols), b.weight("v", s.inner, s.cols)
    matvec = partial(ops.matvec, b, contiguous=s.contiguous)
    row = ops.row_sum(b, x, gain, 1e-5, "row", matvec(x, b.weight("u", s.inner, s.inner), "u"))
    gate = ops.combine(b, matvec(row.scaled, w, "w"), "gate", act="silu", normed=(row, None))
    y = ops.combine(b, matvec(row.scaled, v, "v"), "y", normed=(row, None), times=gate)
    a, n = b.held, s.inner
    total = a["x"] + a["x"] @ a["u"][:n]
    normed = rms(total, a["gain"], 1e-5)
    return [Want(row.x, total), Want(y, silu(normed @ a["w"][:n]) * (normed @ a["v"][:n]))]


def blended_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records an RMS norm, a gated MLP and its residual sum for one row. Blending adds up the products."""
    inner, cols = 32 * (1 + s.inner % 3), 32 * (1 + s.cols % 3)
    x, gain, w = b.normal("x", 1, inner), b.normal("gain", 1, inner), b.weight("w", inner, cols)
    v, down, a = b.weight("v", inner, cols), b.weight("down", cols, inner), b.held
    normed = rms(a["x"], a["gain"], 1e-5)
    outputs = 8 if down.layout.format.packed else 2
    strides = ops.stream_strides([down]) if b.style.options.storage == "float" else 0
    if not strides or outputs > b.limits.max_draw_buffers:  # integer targets and folded packed weights cannot blend
        return [Want(ops.rms_norm(b, x, gain, 1e-5, b.many(1, inner), "y"), normed)]
    stream = ops.stream(b, x, strides, 1e-5, True, 0.0, gain, s.pairs)
    (gate, up), moments = ops.products(b, stream, [w, v], "sums")
    hidden = ops.Hidden(gate, up, (moments, None), "silu")
    ops.add_product(b, hidden, down, None, stream, "added")
    total = a["x"] + (silu(normed @ a["w"]) * (normed @ a["v"])) @ a["down"]
    return [Want(ops.from_stream(b, stream, "y"), total)]


def sum_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records each row of the residual stream plus a product and its bias."""
    tall(b)
    x, y, gain = b.normal("x", s.texts, s.cols), b.normal("y", s.texts, s.inner), b.normal("gain", 1, s.cols)
    product = ops.few_rows(b, y, b.weight("w", s.inner, s.cols, s.panels), "sums", s.contiguous)
    row, a = ops.row_sum(b, x, gain, 1e-5, "row", product.plus(b.normal("shift", 1, s.cols)), None), b.held
    total = a["x"] + a["y"] @ a["w"][: s.inner] + a["shift"]
    return [Want(row.x, total), Want(row.scaled, total * a["gain"])]


def norm_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    given = {"x": b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))}
    given |= {name: b.normal(name, 1, s.cols) for name in ("gain", "bias")}
    y = ops.norm(b, *given.values(), EPS, b.many(s.rows, s.cols), "y")
    return Taped((y,), given, lambda x, gain, bias: (ref.norm(x, gain, bias, EPS),))


def rms_norm_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    given = {"x": b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols)), "gain": b.normal("gain", 1, s.cols)}
    y = ops.rms_norm(b, *given.values(), EPS, b.many(s.rows, s.cols), "y")
    return Taped((y,), given, lambda x, gain: (rms(x, gain, EPS),))


CASES = {
    "norm": Case(shapes(**MATRIX), norm, (4e-6, 8)),
    "row_sum": Case(shapes(**MATRIX, **PRODUCT, row=st.integers(0, 28), named=FLAG, shift=FLAG), row_sum, (2e-5, 8)),
    "norm_fold": Case(shapes(inner=COLS, cols=COLS, shift=FLAG), norm_fold, (2e-5, 2)),
    "rms_norm": Case(shapes(**MATRIX), rms_norm, (4e-6, 8)),
    "rms_row": Case(shapes(**ROW, cols=COLS), rms_row, (1e-4, 16)),
    "blended_row": Case(shapes(inner=COLS, cols=COLS, pairs=FLAG), blended_row, (4e-3, 32)),
    "sum_rows": Case(shapes(**FEW, cols=COLS), sum_rows, (2e-5, 8)),
}


VJPS = {
    "norm": VjpCase(shapes(**WIDE, **DY), norm_vjp, (2e-5, 8)),
    "rms_norm": VjpCase(shapes(**WIDE, **DY), rms_norm_vjp, (2e-5, 8)),
}
