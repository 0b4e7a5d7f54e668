"""Defines cases of products of many rows, of one row and of a few rows, with the ops that are fused into them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from helpers import reference as ref
from helpers import reference_training as more
from hypothesis import strategies as st

from cases.case import Array, Case, Taped, VjpCase, Want, tall
from cases.draws import ACTS, COLS, CONTIGUOUS, DY, EPS, FEW, FLAG, MATRIX, PART, PRODUCT, ROWS, VOCAB, WIDE, shapes
from glgpt import ops
from glgpt.program.layout import Layout, texels
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from helpers.op_bench import Bench


def product(b: Bench, s: SimpleNamespace, cols: int) -> ops.PartialSums:
    """Records a row times a matrix as partial sums; `summed` returns their expected sum."""
    row, w = b.normal("a", 1, s.inner, Layout(1, s.inner, (1, s.tiles))), b.weight("w", s.inner, cols)
    split_k = min(s.split_k, b.limits.max_texture_size // 16)  # a slice has up to 16 rows of pixels
    return ops.matvec(b, row, w, "partial_sums", -(-texels(s.inner) // 4 // split_k), s.contiguous)


def summed(b: Bench, s: SimpleNamespace) -> Array:
    return ref.matmul(b.held["a"], b.held["w"][: s.inner])


class Into(ops.Splits):
    """Splits every product into `split_k` slices, or fewer if their sums do not fit into a texture."""

    def __init__(self, split_k: int, packed_sums: bool = False) -> None:
        super().__init__(0, split_k, packed_sums=packed_sums)

    def of(self, rec: Recorder, rows: int, inner: int, width: int) -> int:
        return max(1, min(self.most, rec.limits.max_texture_size // width))


def matmul(b: Bench, s: SimpleNamespace, most: int = 1, packed_sums: bool = False) -> list[Want]:
    x, w = b.normal("x", s.rows, s.inner, b.many(s.rows, s.inner)), b.weight("w", s.inner, s.cols)
    bias = b.normal("bias", 1, s.cols) if s.bias else None
    splits = Into(most, packed_sums)
    dtype, tile_cols, a = "f32" if s.plain else b.style.dtype, b.style.tiles[1], b.held
    residual = None
    split_k = splits.of(b, s.rows, s.inner, texels(s.cols) // 4)
    if s.residual and (split_k > 1 or dtype == b.style.dtype):
        residual = b.normal("r", s.rows, s.cols, b.stream(s.rows, s.cols))
    y = ops.matmul(b, x, w, bias, "y", act=s.act, residual=residual, dtype=dtype, tile_cols=tile_cols, splits=splits)
    w = a["w"][: s.inner]
    # The textures that a later pass adds up, or adds to the residual. If packed, their values are rounded to float16.
    added = [b.seen[name] for name in ("y.partial_sums", "y.product") if name in b.seen]
    halves = any(t.layout.format.packed for t in added)
    summed = np.abs(a["x"]) @ np.abs(w) if halves else None
    return [Want(y, ref.matmul(a["x"], w, a.get("bias"), s.act, a.get("r")), summed=summed)]


def head_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records the logits of many rows. The columns may exceed the width of a texture."""
    x, w = b.normal("x", s.rows, s.inner, b.many(s.rows, s.inner)), b.weight("w", s.inner, s.vocab)
    y = ops.matmul(b, x, w, None, "y", tile_cols=b.style.tiles[1])
    return [Want(y, ref.matmul(b.held["x"], b.held["w"][: s.inner]))]


def head_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records the last norm and the head for one row, as in decoding: its logits and the best token."""
    x, gain = b.normal("x", 1, s.inner), b.normal("gain", 1, s.inner)
    bias, w = b.normal("bias", 1, s.inner), b.weight("w", s.inner, s.vocab, s.panels)
    row, folded = ops.row_sum(b, x, gain, 1e-5, "row"), ops.norm_fold(b, gain, bias, w, None, "w")
    y = ops.combine(b, ops.matvec(b, row.scaled, w, "partial_sums", contiguous=s.contiguous), "y", normed=(row, folded))
    token, a = b.fixed("token", Layout(1, 4), "state"), b.held
    ops.argmax(b, y, token)
    logits = ref.matmul(ref.norm(a["x"], a["gain"], a["bias"], 1e-5), a["w"][: s.inner])
    best = ref.argmax(logits)
    return [Want(y, logits), Want(token, np.array([[best, logits[0, best], 0, 0]]))]


def normed_row(b: Bench, width: int, cols: int) -> tuple[ops.NormedRow, tuple[Tensor, Tensor]]:
    """Returns a random row with its moments, and random results of `norm_fold` for a weight with `cols` columns."""
    row = b.normal("row", 1, width)
    parts = [b.held["row"][0, k : k + 4] for k in range(0, width, 4)]
    moments = b.given("moments", np.array([v for p in parts for v in (p.mean(), p.size * p.var(), p.size, 0)])[None])
    return ops.NormedRow(row, row, moments, 1e-5), (b.normal("gain_w", 1, cols), b.normal("bias_w", 1, cols))


def finished(b: Bench, s: SimpleNamespace) -> Array:
    a = b.held
    return ref.finish_norm(summed(b, s), a["row"], a["gain_w"], a["bias_w"], 1e-5) if s.normed else summed(b, s)


def matvec(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a row times a matrix, and the pass that adds up partial sums and applies a norm and an activation."""
    y = ops.combine(
        b, product(b, s, s.cols), "y", act=s.act, normed=normed_row(b, s.width, s.cols) if s.normed else None
    )
    return [Want(y, ref.act(finished(b, s), s.act))]


def few_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records the logits of a few normed rows with their best tokens, and an activated product times other values."""
    tall(b)
    x, gain, bias = b.normal("x", s.texts, s.inner), b.normal("gain", 1, s.inner), b.normal("bias", 1, s.inner)
    w, times = b.weight("w", s.inner, s.vocab, s.panels), b.normal("times", s.texts, s.vocab)
    row, folded = ops.row_sum(b, x, gain, 1e-5, "row", row=None), ops.norm_fold(b, gain, bias, w, None, "w")
    y = ops.combine(b, ops.few_rows(b, row.scaled, w, "sums", s.contiguous), "y", normed=(row, folded))
    z = ops.combine(b, ops.few_rows(b, x, w, "plain", s.contiguous), "z", act=s.act, times=times)
    token, a = b.fixed("token", Layout(s.texts, 4), "state"), b.held
    ops.argmax(b, y, token)
    used = a["w"][: s.inner]
    logits = ref.matmul(ref.norm(a["x"], a["gain"], a["bias"], 1e-5), used)
    best = np.array([[i := ref.argmax(row), row[i], 0, 0] for row in logits])
    return [Want(y, logits), Want(z, ref.matmul(a["x"], used, kind=s.act) * a["times"]), Want(token, best)]


def matmul_vjp(b: Bench, s: SimpleNamespace, split_k: int = 1) -> Taped:
    given = {"x": b.normal("x", s.rows, s.inner, b.many(s.rows, s.inner)), "w": b.weight("w", s.inner, s.cols)}
    if s.bias:
        given["bias"] = b.normal("bias", 1, s.cols)
    splits = Into(split_k, packed_sums=True)
    if s.residual:
        given["residual"] = b.normal("residual", s.rows, s.cols, b.stream(s.rows, s.cols))
    how: dict[str, Any] = {"dtype": b.style.dtype, "tile_cols": b.style.tiles[1], "splits": splits}
    y = ops.matmul(b, given["x"], given["w"], given.get("bias"), "y", residual=given.get("residual"), **how)

    def function(x: Array, w: Array, bias: Any = None, residual: Any = None) -> tuple[Array]:
        return (ref.matmul(x, w[: s.inner], bias, None, residual),)

    return Taped((y,), given, function, {"w": s.inner})


def recomputed_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    """Records a norm and an MLP. Only the input is stored, so the backward pass computes the other values again."""
    given = {"x": b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))}
    given |= {name: b.normal(name, 1, s.cols) for name in ("gain", "bias")}
    given |= {"w": b.weight("w", s.cols, s.inner), "v": b.weight("v", s.inner, s.cols)}
    x, gain, bias, w, v = given.values()
    b.row, b.more = s.row, {"seed": 5, "step": 7}
    how: dict[str, Any] = {"dtype": b.style.dtype, "tile_cols": b.style.tiles[1]}

    def half(x: Tensor) -> Tensor:
        normed = ops.norm(b, x, gain, bias, EPS, b.many(s.rows, s.cols), "normed")
        m = ops.matmul(b, normed, w, None, "pre", **how)
        m = ops.dropout(b, ops.act(b, m, "gelu_new", m.layout, "act"), 0.3, 2, "kept")
        if not b.style.format.packed:
            return ops.matmul(b, m, v, None, "y", residual=x, **how)
        return ops.add(b, x, ops.matmul(b, m, v, None, "product", **how), x.layout, "y")

    def function(x: Array, gain: Array, bias: Array, w: Array, v: Array) -> tuple[Array]:
        m = ref.act(ref.norm(x, gain, bias, EPS) @ w[: s.cols], "gelu_new")
        return (x + m * more.kept(s.rows, s.inner, 0.3, 2, 5, 7, s.row) @ v[: s.inner],)

    y = b.recomputed(half, x, [gain, bias, w, v])
    return Taped((y,), given, function, {"w": s.cols, "v": s.inner})


FACTORS = MATRIX | {"inner": COLS, "act": ACTS, "bias": FLAG, "residual": FLAG, "plain": FLAG}


CASES = {
    "matmul": Case(shapes(**FACTORS), matmul, (2e-5, 4)),
    "matmul_sum": Case(shapes(**FACTORS, split_k=st.integers(2, 4)), lambda b, s: matmul(b, s, s.split_k), (2e-5, 4)),
    "packed_sums": Case(
        shapes(**FACTORS, split_k=st.integers(2, 4)), lambda b, s: matmul(b, s, s.split_k, packed_sums=True), (2e-5, 4)
    ),
    "head_rows": Case(shapes(rows=ROWS, inner=COLS, vocab=VOCAB), head_rows, (2e-5, 2)),
    "head_row": Case(
        shapes(inner=st.integers(3, 100), vocab=VOCAB, contiguous=CONTIGUOUS, panels=FLAG), head_row, (2e-5, 2)
    ),
    "matvec": Case(shapes(**PRODUCT, cols=COLS, act=ACTS, normed=FLAG), matvec, (2e-5, 8)),
    "few_rows": Case(shapes(**FEW, vocab=VOCAB, act=ACTS), few_rows, (4e-5, 16)),
}


VJPS = {
    "split matmul": VjpCase(  # each of three slices is rounded to float16
        shapes(**WIDE, inner=COLS, bias=FLAG, residual=FLAG, **DY), lambda b, s: matmul_vjp(b, s, 3), (4e-5, 2), 6e-3
    ),
    "matmul": VjpCase(shapes(**WIDE, inner=COLS, bias=FLAG, residual=FLAG, **DY), matmul_vjp, (4e-5, 2), 2e-3),
    "recomputed": VjpCase(shapes(**WIDE, inner=COLS, **PART, **DY), recomputed_vjp, (2e-3, 16), 0.1),
}
