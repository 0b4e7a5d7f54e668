"""Test cases of ops, one for each: shapes to draw, recording on given arrays, the expected result, the tolerance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import reference as ref
from hypothesis import strategies as st
from numpy.typing import NDArray

from glgpt import ops
from glgpt.program.layout import Layout, fold, one_layer, texels
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from test_ops import Bench

Array = NDArray[Any]


@dataclass(frozen=True)
class Want:
    """A tensor and its expected values. `read` converts its matrix to what is compared; `bare`: not zero beyond it.

    `summed` are the magnitudes that were added up as float16; their rounding is within k eps of these.
    """

    tensor: Tensor
    expected: Array
    read: Callable[[Array], Array] | None = None
    bare: bool = False
    summed: Array | None = None


@dataclass(frozen=True)
class Case:
    """An op. `near` = (atol, k) means |ours - ref| <= atol + k eps |ref|; eps is that of float16 if packed."""

    shape: st.SearchStrategy[SimpleNamespace]
    record: Callable[[Bench, SimpleNamespace], list[Want]]
    near: tuple[float, float]


def shapes(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[SimpleNamespace]:
    return st.builds(SimpleNamespace, **fields)


ROWS, COLS = st.integers(1, 29), st.integers(1, 100)
ACTS = st.sampled_from(["gelu_new", None, "gelu", "relu"])


def moments_of(matrix: Array) -> Array:
    """Returns (mean, squared deviations) by row, from a tensor of moments of slices."""
    m = matrix.reshape(len(matrix), -1, 4).astype(np.float64)
    count = m[..., 2].sum(axis=1)
    mean = (m[..., 0] * m[..., 2]).sum(axis=1) / count
    squares = (m[..., 1] + m[..., 2] * (m[..., 0] - mean[:, None]) ** 2).sum(axis=1)
    return np.stack([mean, squares], axis=1)


def embed(b: Bench, s: SimpleNamespace) -> list[Want]:
    ids = b.given("ids", b.rng.integers(0, s.vocab, (s.rows, 1)), role="input")
    wte, wpe = b.weight("wte", s.cols, s.vocab), b.normal("wpe", s.pos + s.rows, s.cols)
    b.pos, a = s.pos, b.held
    y = ops.embed(b, ids, wte, wpe, b.stream(s.rows, s.cols))
    return [Want(y, ref.embed(a["ids"][:, 0].astype(int), a["wte"][: s.cols], a["wpe"], s.pos))]


def norm(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))
    gain, bias, a = b.normal("gain", 1, s.cols), b.normal("bias", 1, s.cols), b.held
    y = ops.norm(b, x, gain, bias, 1e-5, b.many(s.rows, s.cols), "y")
    stats = np.stack(ref.moments(a["x"]), axis=1)
    return [
        Want(y, ref.norm(a["x"], a["gain"], a["bias"], 1e-5)),
        Want(b.seen["y.stats"], stats, moments_of, bare=True),
    ]


def product(b: Bench, s: SimpleNamespace, cols: int) -> ops.PartialSums:
    """Records a row times a matrix as partial sums, whose sum is `summed`."""
    row, w = b.normal("a", 1, s.inner, Layout(1, s.inner, (1, s.tiles))), b.weight("w", s.inner, cols)
    split_k = min(s.split_k, b.limits.max_texture_size // 16)  # the height of a target, if by = 16
    return ops.matvec(b, row, w, "partial_sums", -(-texels(s.inner) // 4 // split_k), s.contiguous)


def summed(b: Bench, s: SimpleNamespace) -> Array:
    return ref.matmul(b.held["a"], b.held["w"][: s.inner])


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


class Into(ops.Splits):
    """Splits every product into this many slices, if they fit."""

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
    added = [b.seen[name] for name in ("y.partial_sums", "y.product") if name in b.seen]  # in their storage format
    halves = any(t.layout.format.packed for t in added)
    summed = np.abs(a["x"]) @ np.abs(w) if halves else None
    return [Want(y, ref.matmul(a["x"], w, a.get("bias"), s.act, a.get("r")), summed=summed)]


def head_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Returns the logits of many rows: more columns than one texture has texels."""
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


def _normed(b: Bench, width: int, cols: int) -> tuple[ops.NormedRow, tuple[Tensor, Tensor]]:
    """Returns a row with given moments, and a folded norm, for a product of `cols` columns."""
    row = b.normal("row", 1, width)
    parts = [b.held["row"][0, k : k + 4] for k in range(0, width, 4)]
    moments = b.given("moments", np.array([v for p in parts for v in (p.mean(), p.size * p.var(), p.size, 0)])[None])
    return ops.NormedRow(row, row, moments, 1e-5), (b.normal("gain_w", 1, cols), b.normal("bias_w", 1, cols))


def _finished(b: Bench, s: SimpleNamespace) -> Array:
    a = b.held
    return ref.finish_norm(summed(b, s), a["row"], a["gain_w"], a["bias_w"], 1e-5) if s.normed else summed(b, s)


def matvec(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a row times a matrix, and the partial sums with an activation or a folded norm."""
    y = ops.combine(b, product(b, s, s.cols), "y", act=s.act, normed=_normed(b, s.width, s.cols) if s.normed else None)
    return [Want(y, ref.act(_finished(b, s), s.act))]


def split_qkv(b: Bench, s: SimpleNamespace) -> list[Want]:
    width, b.pos, rows = 4 * s.d4 * s.n_head, s.pos, 1 if s.normed else s.rows
    normed = _normed(b, s.width, 3 * width) if s.normed else None
    x = product(b, s, 3 * width) if s.normed else b.normal("x", rows, 3 * width, b.many(rows, 3 * width))
    states = [b.normal(name, s.pos + rows + 2, width, role="state") for name in "qkv"]
    before = [b.held[name].copy() for name in "qkv"]
    ops.split_qkv(b, x, *states, "qkv", normed)
    for old, new in zip(before, ref.split_qkv(_finished(b, s) if s.normed else b.held["x"]), strict=True):
        old[s.pos : s.pos + rows] = new  # all other positions are unchanged
    return [Want(state, now) for state, now in zip(states, before, strict=True)]


def _masked(b: Bench, s: SimpleNamespace, keys: int) -> Array:
    """Returns score rows `t * n_head + head`, MASKED beyond each t's position."""
    values = 3 * b.rng.standard_normal((s.rows, s.n_head, keys))
    beyond = np.arange(keys) > s.pos + np.arange(s.rows)[:, None, None]
    return np.where(beyond, ref.MASKED, values).reshape(-1, keys)


def _flat(cube: Array) -> Array:
    """Returns `[n_head, rows, keys]` as score rows."""
    return cube.transpose(1, 0, 2).reshape(-1, cube.shape[2])


def _cube(rows: Array, n_head: int) -> Array:
    return rows.reshape(-1, n_head, rows.shape[1]).transpose(1, 0, 2)


def _cache(b: Bench, s: SimpleNamespace, name: str) -> Tensor:
    """Returns keys or values of every position written so far, and NaN beyond them."""
    values = b.rng.standard_normal((s.pos + s.rows + s.spare, 4 * s.d4 * s.n_head))
    values[s.pos + s.rows :] = np.nan
    return b.given(name, values, role="state")


def scores(b: Bench, s: SimpleNamespace) -> list[Want]:
    q, k, tr = _cache(b, s, "q"), _cache(b, s, "k"), b.style.tiles[0]
    b.pos = s.pos
    y = ops.scores(b, q, k, s.rows, tr, s.n_head, 0.4, "y")
    known = np.nan_to_num(b.held["k"])  # masked values are undefined
    wanted = ref.scores(b.held["q"], known, s.n_head, 0.4, s.pos, s.rows)
    return [Want(y, _flat(wanted), lambda m: m[: s.rows * s.n_head], bare=True)]


def softmax(b: Bench, s: SimpleNamespace) -> list[Want]:
    tr, keys = b.style.tiles[0], s.pos + s.rows + s.spare
    padded = -(-s.rows // tr) * tr * s.n_head
    score = np.pad(_masked(b, s, keys), ((0, padded - s.rows * s.n_head), (0, 0)))
    x = b.given("x", score, Layout(padded, keys, (tr, 1)))
    b.pos, used = s.pos, slice(s.rows * s.n_head)
    y = ops.softmax(b, x, s.n_head, "y")
    wanted = ref.softmax(_cube(b.held["x"][used], s.n_head))
    return [Want(y, _flat(wanted), lambda m: m[used])]


def attend(b: Bench, s: SimpleNamespace) -> list[Want]:
    tr, v = b.style.tiles[0], _cache(b, s, "v")
    padded = -(-s.rows // tr) * tr * s.n_head
    pattern = ref.softmax(_masked(b, s, v.rows))
    pattern = np.pad(pattern, ((0, padded - len(pattern)), (0, 0)))
    x = b.given("x", pattern, Layout(padded, v.rows, (tr, 1)))
    b.pos = s.pos
    z = ops.attend(b, x, v, s.rows, s.n_head, "z", b.style.dtype)
    cube = _cube(b.held["x"][: s.rows * s.n_head], s.n_head)
    return [Want(z, ref.attend(cube, np.nan_to_num(b.held["v"])))]


def attention(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records attention from scores to heads; nothing is written beyond the positions of a fragment's rows."""
    q, k, v = (_cache(b, s, name) for name in "qkv")
    b.pos = s.pos
    score = ops.scores(b, q, k, s.rows, b.style.tiles[0], s.n_head, 0.4, "scores", to_position=True)
    pattern = ops.softmax(b, score, s.n_head, "pattern", to_position=True)
    z = ops.attend(b, pattern, v, s.rows, s.n_head, "z", b.style.dtype)
    known, values = np.nan_to_num(b.held["k"]), np.nan_to_num(b.held["v"])
    scores = ref.scores(b.held["q"], known, s.n_head, 0.4, s.pos, s.rows)
    return [Want(z, ref.attend(ref.softmax(scores), values))]


def attend_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    s = SimpleNamespace(**vars(s) | {"rows": 1, "pos": min(s.pos, b.limits.max_texture_size - 10)})
    v = _cache(b, s, "v")
    x, w = b.given("x", _masked(b, s, v.rows)), b.weight("w", v.cols, s.cols)
    b.pos, reached = s.pos, s.pos + 1
    z = ops.attend_row(b, x, v, s.n_head, "z", s.least)
    y = ops.combine(b, ops.matvec(b, z, w, "partial_sums", contiguous=s.contiguous), "y")
    score, known = _cube(b.held["x"][:, :reached], s.n_head), b.held["v"][:reached]
    whole = ref.attend(ref.softmax(score), known)
    wants = [Want(y, ref.matmul(whole, b.held["w"][: v.cols]))]  # the ranges, combined by the product that reads them
    if isinstance(z, Tensor):
        return [Want(z, whole), *wants]
    values, logs = ref.attend_ranges(score, known, z.keys)
    wants.append(Want(z.values, values, lambda m: m[: len(values)], bare=True))
    return [Want(z.logs, logs, lambda m: m[: len(values), :: 4 * s.d4], bare=True), *wants]


def act(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.given("x", 4 * b.rng.standard_normal((s.rows, s.cols)), b.many(s.rows, s.cols))
    y = ops.act(b, x, s.act, b.stream(s.rows, s.cols), "y")
    return [Want(y, ref.act(b.held["x"], s.act))]


def add(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))
    y = ops.add(b, x, b.normal("z", s.rows, s.cols, b.many(s.rows, s.cols)), x.layout, "y")
    return [Want(y, b.held["x"] + b.held["z"])]


def edit(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Each position and head has its own row of gain and shift, or is unchanged (row 0)."""
    positions = s.pos + s.rows + s.spare
    x = b.normal("x", s.rows * s.per, s.cols, b.stream(s.rows * s.per, s.cols))
    gain, shift = (b.normal(name, 3, s.cols) for name in ("gain", "shift"))
    limit = b.limits.max_texture_size
    which = b.given("which", b.rng.integers(0, 3, (positions, s.per)), fold(positions, s.per, limit))
    b.pos, b.row, held = s.pos, s.spare, b.held
    rows = held["which"].astype(int)
    wants = [Want(ops.edit(b, x, gain, shift, which), ref.edit(held["x"], held, rows[s.pos : s.pos + s.rows].ravel()))]
    if s.per == 1:
        last = b.normal("last", 1, s.cols)
        y = ops.edit(b, last, gain, shift, which, only_row="row")
        wants.append(Want(y, ref.edit(held["last"], held, rows[s.pos + s.spare])))
        state = b.normal("state", positions, s.cols, fold(positions, s.cols, limit), role="state")
        part = one_layer(s.rows, s.cols)
        y = ops.edit(b, state, gain, shift, which, part)
        here = slice(s.pos, s.pos + s.rows)
        wants.append(Want(y, ref.edit(held["state"][here], held, rows[here, 0])))
    return wants


def edit_one(b: Bench, s: SimpleNamespace) -> list[Want]:
    """One position, which may be outside the rows, has its own row of gain and shift."""
    x = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))
    gain, shift = (b.normal(name, 2, s.cols) for name in ("gain", "shift"))
    at = b.given("at", np.array([[s.at, 7, 7, 7]]), Layout(1, 4))
    b.pos = s.pos
    one = (np.arange(s.rows) + s.pos == s.at).astype(int)
    held = b.held
    return [Want(ops.edit_one(b, x, gain, shift, at), held["x"] * held["gain"][one] + held["shift"][one])]


def set_pattern(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Some heads attend to fixed tokens and one is unchanged; keys beyond a position get nothing."""
    tr, keys = b.style.tiles[0], s.pos + s.rows + s.spare
    padded, used = -(-s.rows // tr) * tr * s.n_head, slice(s.rows * s.n_head)
    x = b.given("x", b.rng.standard_normal((padded, keys)), Layout(padded, keys, (tr, 1)))
    b.pos, wants = s.pos, []
    for first in range(1 + len(ops.PATTERNS)):  # every kind is tested, for any number of heads
        how = (np.arange(s.n_head) + first) % (1 + len(ops.PATTERNS))
        texels = np.stack([how, *[how * 0 + 5] * 3], 1).reshape(1, -1)
        held = b.given(f"how {first}", texels, Layout(1, 4 * s.n_head))
        wanted = ref.set_pattern(b.held["x"][used], how, s.n_head, s.pos)
        wants.append(Want(ops.set_pattern(b, x, held, s.n_head), wanted, lambda m: m[used]))
    return wants


def argmax(b: Bench, s: SimpleNamespace) -> list[Want]:
    layout = Layout(1, s.vocab, (1, s.tiles))
    x = b.given("x", b.rng.integers(-9, 9, (1, s.vocab)), layout)  # integers, many of them equal
    token, best = b.fixed("token", Layout(1, 4), "state"), ref.argmax(b.held["x"])
    ops.argmax(b, x, token)
    return [Want(token, np.array([[best, b.held["x"][0, best], 0, 0]]))]


def sample(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Draws with a single possible result, by top-k 1 and the smallest top-p; `tests/ops/test_sample.py` has others."""
    x = b.given("x", b.rng.integers(-3, 3, (1, s.vocab)), Layout(1, s.vocab, (1, s.tiles)))  # many are equal
    best, row = b.fixed("best", ops.TOKEN, "state"), b.held["x"][0]
    b.more = {"inverse_temperature": 1, "margin": 1e30, "nucleus_width": 16, "top_k": 1, "top_p": 1e-6, "draw_step": 9}
    ops.argmax(b, x, best)
    order = np.argsort(-row, kind="stable")[: ops.ALTERNATIVES]
    texels = np.zeros((ops.ALTERNATIVES + 2, 4))
    texels[1:-1, 0] = -1
    texels[1 : 1 + len(order)] = [(i, row[i], i == order[0], 0) for i in order]
    texels[0, :2] = texels[1, :2]
    texels[-1] = np.exp(row - row.max()).sum(), 1, row.max(), 0
    wants = []
    for nucleus in (False, True):
        wants.append(Want(b.fixed(f"drawn {nucleus}", ops.TOKEN, "state"), texels.reshape(1, -1)))
        ops.sample(b, x, best, wants[-1].tensor, nucleus)
    return wants


MATRIX = {"rows": ROWS, "cols": COLS}
ATTENTION = {"rows": st.integers(1, 13), "n_head": st.integers(1, 3), "d4": st.integers(1, 3)} | {
    "pos": st.integers(0, 9),
    "spare": st.integers(0, 9),  # positions of the context that are still empty
}
# `pos` + 1 keys, which one row processes in groups of sixteen and a rest; a range has at least `least` keys.
RANGES = {"pos": st.sampled_from([50, 40, 22, 15, 3]), "least": st.sampled_from([16, 128]), "cols": COLS}
VOCAB = st.sampled_from([250, 131, 50, 3, 1])  # the first (always drawn) exceeds a folded texture and two panels
FLAG = st.sampled_from([True, False])  # the first one is always drawn
FACTORS = MATRIX | {"inner": COLS, "act": ACTS, "bias": FLAG, "residual": FLAG, "plain": FLAG}
CONTIGUOUS = st.sampled_from((0, 2, 4))
PRODUCT = {"inner": st.integers(1, 100), "tiles": st.integers(1, 2), "split_k": st.integers(1, 5)} | {
    "contiguous": CONTIGUOUS,
    "width": st.integers(2, 64),  # width of the row whose moments a folded norm uses
}
# atol bounds the rounding of a sum's terms: about sqrt(terms) x their size x 2^-24, with a margin for the
# drivers' order of addition; k bounds the errors that scale with the result. exp and 1/sqrt are off by a few units.
CASES = {
    "embed": Case(shapes(**MATRIX, vocab=st.integers(1, 64), pos=st.integers(0, 3)), embed, (0.0, 1)),
    "norm": Case(shapes(**MATRIX), norm, (4e-6, 8)),
    "row_sum": Case(shapes(**MATRIX, **PRODUCT, row=st.integers(0, 28), named=FLAG, shift=FLAG), row_sum, (2e-5, 8)),
    "norm_fold": Case(shapes(inner=COLS, cols=COLS, shift=FLAG), norm_fold, (2e-5, 2)),
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
    "split_qkv": Case(shapes(**ATTENTION, **PRODUCT, normed=FLAG), split_qkv, (2e-5, 8)),
    "scores": Case(shapes(**ATTENTION), scores, (4e-6, 2)),
    "softmax": Case(shapes(**ATTENTION), softmax, (1e-6, 8)),
    "attend": Case(shapes(**ATTENTION), attend, (4e-6, 2)),
    "attention": Case(shapes(**ATTENTION), attention, (1e-5, 4)),
    "attend_row": Case(shapes(**ATTENTION | RANGES | {"contiguous": CONTIGUOUS}), attend_row, (2e-5, 8)),
    "act": Case(shapes(**MATRIX, act=ACTS.filter(bool)), act, (2e-6, 8)),
    "add": Case(shapes(**MATRIX), add, (0.0, 1)),
    "edit": Case(
        shapes(**MATRIX, per=st.integers(1, 6), pos=st.integers(0, 5), spare=st.integers(0, 2)),
        edit,
        (1e-6, 8),
    ),
    "edit_one": Case(shapes(**MATRIX, pos=st.integers(0, 5), at=st.integers(-1, 20)), edit_one, (1e-6, 8)),
    "set_pattern": Case(shapes(**ATTENTION), set_pattern, (0.0, 1)),
    "sample": Case(shapes(vocab=st.integers(1, 64), tiles=st.integers(1, 2)), sample, (0.0, 8)),
    "argmax": Case(shapes(vocab=st.integers(1, 64), tiles=st.integers(1, 2)), argmax, (0.0, 0)),
}
