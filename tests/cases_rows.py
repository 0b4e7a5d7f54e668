"""More rows of `cases`: ops on a few rows at once, each of a text at its own position, with shared caches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import reference as ref
from cases import ACTS, COLS, FLAG, VOCAB, Array, Case, Want, shapes
from cases_llama import ROTATIONS, padded_heads, rms, rotated_heads, rotation, shared, tall
from hypothesis import strategies as st

from glgpt import ops
from glgpt.program.layout import Layout, texels
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from test_ops import Bench


def rows_at(b: Bench, s: SimpleNamespace, positions: int, height: int) -> tuple[ops.Rows, Array, Array]:
    """Returns (rows, places, table) of texts at their own positions; their keys are in any rows of such caches."""
    places = np.zeros((s.texts, 4))
    places[:, 0] = b.rng.integers(0, positions, s.texts)
    table = np.stack([b.rng.permutation(height)[:positions] for _ in range(s.texts)])
    given = b.given("places", places, role="state"), b.given("table", table, role="state")
    return ops.Rows(s.texts, *given), places[:, 0].astype(int), table


def few_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a product, an activation or a norm, and a factor for a few rows; then the best column of each."""
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


def sum_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records each row of the residual stream plus a product and its bias."""
    tall(b)
    x, y, gain = b.normal("x", s.texts, s.cols), b.normal("y", s.texts, s.inner), b.normal("gain", 1, s.cols)
    product = ops.few_rows(b, y, b.weight("w", s.inner, s.cols, s.panels), "sums", s.contiguous)
    row, a = ops.row_sum(b, x, gain, 1e-5, "row", product.plus(b.normal("shift", 1, s.cols)), None), b.held
    total = a["x"] + a["y"] @ a["w"][: s.inner] + a["shift"]
    return [Want(row.x, total), Want(row.scaled, total * a["gain"])]


def attend_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records attention of a few texts with their table; keys and values that none of them may read are NaN."""
    tall(b)
    height, d, heads, b.row = s.positions + 9, 4 * s.d4, s.n_head * s.group, 3
    rows, places, table = rows_at(b, s, s.positions, height)
    seen = np.unique(np.concatenate([t[: at + 1] for t, at in zip(table, places, strict=True)]))
    cache = {name: np.full((height, d * s.n_head), np.nan) for name in "kv"}
    for values in cache.values():
        values[seen] = b.rng.standard_normal((len(seen), d * s.n_head))
    q = b.normal("q", height, d * heads, role="state")
    k, v = (b.given(name, cache[name], role="state") for name in "kv")
    y = ops.scores_rows(b, q, k, heads, 0.4, "y", rows)
    z = ops.attend_row(b, y, v, heads, "z", s.least, s.group, rows)
    assert isinstance(z, Tensor)
    a, scores, whole = b.held, np.full((s.texts * heads, s.positions), ref.MASKED), []
    for i, (order, at) in enumerate(zip(table, places, strict=True)):
        known = {name: shared(a[name][order[: at + 1]], s.n_head, s.group) for name in "kv"}
        query = np.tile(a["q"][b.row + i], (at + 1, 1))
        score = ref.scores(query, known["k"], heads, 0.4, at, 1)
        scores[i * heads : (i + 1) * heads, : at + 1] = score[:, 0]
        whole.append(ref.attend(ref.softmax(score), known["v"])[0])
    return [Want(y, scores, bare=True), Want(z, np.array(whole))]


def split_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Writes queries, keys and values of a few texts to rows of the shared caches, and copies a prompt's there."""
    tall(b)
    width, b.row, b.pos = 4 * s.d4 * s.n_head, 2, 3
    rows, _, _ = rows_at(b, s, 5, 20)
    x, gain = b.normal("x", s.texts, s.inner), b.normal("gain", 1, s.inner)
    bias, w = b.normal("bias", 1, s.inner), b.weight("w", s.inner, 3 * width)
    row, folded = ops.row_sum(b, x, gain, 1e-5, "row", row=None), ops.norm_fold(b, gain, bias, w, None, "w")
    states = [b.normal(name, 20, width, role="state") for name in "qkv"]
    after = [b.held[name].copy() for name in "qkv"]
    product = ops.few_rows(b, row.scaled, w, "sums", s.contiguous)
    ops.split_qkv(b, product, *states, "qkv", (row, folded), rows)
    a = b.held
    normed = ref.norm(a["x"], a["gain"], a["bias"], 1e-5)
    for old, new in zip(after, ref.split_qkv(normed @ a["w"][: s.inner]), strict=True):
        old[b.row : b.row + s.texts] = new
    return [Want(state, now) for state, now in zip(states, after, strict=True)]


def adopt(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Copies a prompt's keys and values; rows beyond its caches repeat the last one."""
    tall(b)
    width, b.row, b.pos = 4 * s.d4 * s.n_head, 2, 3
    k, v, to_k, to_v = (b.normal(name, n, width, role="state") for name, n in zip("kvrs", (9, 9, 20, 20), strict=True))
    after = {name: b.held[name].copy() for name in "rs"}
    ops.adopt(b, k, v, to_k, to_v, 8)
    for name, now in zip("kv", after.values(), strict=True):
        now[2:10] = b.held[name][np.minimum(3 + np.arange(8), 8)]
    return [Want(to_k, after["r"]), Want(to_v, after["s"])]


def take_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a row from the middle of a tensor, written to a wider state in other tiles."""
    tall(b)
    b.row = 4
    x, out = b.normal("x", 7, s.inner, Layout(7, s.inner, (1, 2))), Layout(1, s.inner + 9, (1, 3))
    state = b.normal("state", 1, out.cols, out, role="state")
    ops.take_row(b, x, state)
    return [Want(state, np.pad(b.held["x"][4:5], ((0, 0), (0, 9))))]


def embed_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    tall(b)
    rows, places, _ = rows_at(b, s, 7, 7)
    ids = b.given("ids", b.rng.integers(0, s.vocab, (s.texts, 1)), role="input")
    wte, wpe = b.weight("wte", s.inner, s.vocab), b.normal("wpe", 7, s.inner)
    y, a = ops.embed(b, ids, wte, wpe, Layout(s.texts, s.inner), batch=rows), b.held
    return [Want(y, a["wte"][: s.inner, a["ids"][:, 0].astype(int)].T + a["wpe"][places])]


def rotary_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a few rows from their partial sums, after an RMS norm, each rotated by its own position."""
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


PRODUCT = {"texts": st.integers(1, 8), "inner": COLS, "contiguous": st.sampled_from((0, 2, 4)), "panels": FLAG}
HEADS = {"n_head": st.integers(1, 3), "d4": st.integers(1, 3)}
ROWS = {
    "few_rows": Case(shapes(**PRODUCT, vocab=VOCAB, act=ACTS), few_rows, (4e-5, 16)),
    "sum_rows": Case(shapes(**PRODUCT, cols=COLS), sum_rows, (2e-5, 8)),
    "attend_rows": Case(
        shapes(
            **HEADS,
            texts=st.integers(1, 8),
            group=st.integers(1, 3),
            positions=st.sampled_from([40, 5, 70]),
            least=st.sampled_from([16, 128]),
        ),
        attend_rows,
        (2e-5, 8),
    ),
    "split_rows": Case(shapes(**PRODUCT, **HEADS), split_rows, (4e-5, 8)),
    "adopt": Case(shapes(**HEADS), adopt, (0.0, 0)),
    "take_row": Case(shapes(**PRODUCT), take_row, (0.0, 0)),
    "embed_rows": Case(shapes(**PRODUCT, vocab=st.integers(1, 64)), embed_rows, (0.0, 1)),
    "rotary_rows": Case(shapes(**PRODUCT, **ROTATIONS), rotary_rows, (1e-4, 16)),
}
SHAPE = {"texts": 5, "positions": 40}
