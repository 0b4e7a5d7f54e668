"""Cases of attention: of one text, of a batch, of one row, of rows of several texts, with shared keys and values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from helpers import reference as ref
from helpers import reference_training as more
from hypothesis import strategies as st

from cases.case import Array, Case, Taped, VjpCase, Want, rows_at, tall, unfolded
from cases.draws import ATTENTION, CONTIGUOUS, DY, FEW, FEW_HEADS, FLAG, GROUP, HEADS, PRODUCT, RANGES, ROW, shapes
from cases.matmul import finished, normed_row, product
from glgpt import ops
from glgpt.program.formats import FORMATS
from glgpt.program.layout import Layout
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from helpers.op_bench import Bench


def split_qkv(b: Bench, s: SimpleNamespace) -> list[Want]:
    width, b.pos, rows = 4 * s.d4 * s.n_head, s.pos, 1 if s.normed else s.rows
    normed = normed_row(b, s.width, 3 * width) if s.normed else None
    x = product(b, s, 3 * width) if s.normed else b.normal("x", rows, 3 * width, b.many(rows, 3 * width))
    states = [b.normal(name, s.pos + rows + 2, width, role="state") for name in "qkv"]
    before = [b.held[name].copy() for name in "qkv"]
    ops.split_qkv(b, x, *states, "qkv", normed)
    for old, new in zip(before, ref.split_qkv(finished(b, s) if s.normed else b.held["x"]), strict=True):
        old[s.pos : s.pos + rows] = new  # all other positions are unchanged
    return [Want(state, now) for state, now in zip(states, before, strict=True)]


def _masked(b: Bench, s: SimpleNamespace, keys: int) -> Array:
    """Returns random scores of head h at token t in row `t * n_head + h`. Scores of later keys are MASKED."""
    values = 3 * b.rng.standard_normal((s.rows, s.n_head, keys))
    beyond = np.arange(keys) > s.pos + np.arange(s.rows)[:, None, None]
    return np.where(beyond, ref.MASKED, values).reshape(-1, keys)


def _flat(cube: Array) -> Array:
    """Returns scores `[n_head, rows, keys]` as a matrix with a row for each token and head."""
    return cube.transpose(1, 0, 2).reshape(-1, cube.shape[2])


def _cube(rows: Array, n_head: int) -> Array:
    return rows.reshape(-1, n_head, rows.shape[1]).transpose(1, 0, 2)


def _cache(b: Bench, s: SimpleNamespace, name: str) -> Tensor:
    """Returns a cache with random values at the positions written so far, and NaN at later positions."""
    values = b.rng.standard_normal((s.pos + s.rows + s.spare, 4 * s.d4 * s.n_head))
    values[s.pos + s.rows :] = np.nan
    return b.given(name, values, role="state")


def scores(b: Bench, s: SimpleNamespace) -> list[Want]:
    q, k, tr = _cache(b, s, "q"), _cache(b, s, "k"), b.style.tiles[0]
    b.pos = s.pos
    y = ops.scores(b, q, k, ops.AttentionRows(s.rows, s.n_head, 0.4), tr, "y")
    known = np.nan_to_num(b.held["k"])  # later keys are NaN; the reference masks their scores
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
    z = ops.attend(b, x, v, ops.AttentionRows(s.rows, s.n_head), "z", b.style.dtype)
    cube = _cube(b.held["x"][: s.rows * s.n_head], s.n_head)
    return [Want(z, ref.attend(cube, np.nan_to_num(b.held["v"])))]


def attention(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records scores, softmax and attention. A fragment of scores writes nothing if all its keys are masked."""
    q, k, v = (_cache(b, s, name) for name in "qkv")
    b.pos = s.pos
    score = ops.scores(b, q, k, ops.AttentionRows(s.rows, s.n_head, 0.4), b.style.tiles[0], "scores", to_position=True)
    pattern = ops.softmax(b, score, s.n_head, "pattern", to_position=True)
    z = ops.attend(b, pattern, v, ops.AttentionRows(s.rows, s.n_head), "z", b.style.dtype)
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
    wants = [Want(y, ref.matmul(whole, b.held["w"][: v.cols]))]  # the product combines the ranges that it reads
    if isinstance(z, Tensor):
        return [Want(z, whole), *wants]
    values, logs = ref.attend_ranges(score, known, int(z.defines["KEYS"]))
    wants.append(Want(z.values, values, lambda m: m[: len(values)], bare=True))
    return [Want(z.logs, logs, lambda m: m[: len(values), :: 4 * s.d4], bare=True), *wants]


def attend_ranges(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records the attention of one row in ranges of keys, and a product that combines the ranges.

    If `s.window` is not 0, the row attends only to the last `s.window` keys.
    """
    heads, s = s.n_head * s.group, SimpleNamespace(**vars(s) | {"rows": 1})
    s.pos = min(s.pos, b.limits.max_texture_size - 10)
    v = _cache(b, s, "v")
    masked = _masked(b, SimpleNamespace(**vars(s) | {"n_head": heads}), v.rows)
    masked[:, : max(s.pos + 1 - s.window, 0) if s.window else 0] = ref.MASKED
    x, w = b.given("x", masked), b.weight("w", v.cols * s.group, s.cols)
    b.pos = s.pos
    z = ops.attend_ranges(b, x, v, heads, "z", s.group, s.window)
    y = ops.combine(b, ops.matvec(b, z, w, "partial_sums", contiguous=s.contiguous), "y")
    score, known = _cube(b.held["x"][:, : s.pos + 1], heads), shared(b.held["v"][: s.pos + 1], s.n_head, s.group)
    return [Want(y, ref.matmul(ref.attend(ref.softmax(score), known), b.held["w"][: w.rows]))]


def set_pattern(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a copy of attention patterns, with new patterns for some heads. These give later keys no weight."""
    tr, keys = b.style.tiles[0], s.pos + s.rows + s.spare
    padded, used = -(-s.rows // tr) * tr * s.n_head, slice(s.rows * s.n_head)
    x = b.given("x", b.rng.standard_normal((padded, keys)), Layout(padded, keys, (tr, 1)))
    b.pos, wants = s.pos, []
    for first in range(1 + len(ops.PATTERNS)):  # tests every kind of pattern, also with one head
        how = (np.arange(s.n_head) + first) % (1 + len(ops.PATTERNS))
        texels = np.stack([how, *[how * 0 + 5] * 3], 1).reshape(1, -1)
        held = b.given(f"how {first}", texels, Layout(1, 4 * s.n_head))
        wanted = ref.set_pattern(b.held["x"][used], how, s.n_head, s.pos)
        wants.append(Want(ops.set_pattern(b, x, held, s.n_head), wanted, lambda m: m[used]))
    return wants


def shared(x: Array, n_head: int, group: int) -> Array:
    """Returns heads `[rows, n_head * d]` with each head repeated `group` times, for the query heads that share it."""
    cube = x.reshape(len(x), n_head, -1)
    return np.repeat(cube, group, axis=1).reshape(len(x), -1)


def grouped(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records scores and attention of query heads that share keys and values, and scores with q and k swapped."""
    heads, total = s.n_head * s.group, s.pos + s.rows
    q = b.normal("q", total, 4 * s.d4 * heads, role="state")
    k, v = (b.normal(name, total, 4 * s.d4 * s.n_head, role="state") for name in "kv")
    b.pos, a, tr = s.pos, b.held, b.style.tiles[0]
    y = ops.scores(b, q, k, ops.AttentionRows(s.rows, heads, 0.4), tr, "y")
    swapped = ops.scores(b, k, q, ops.AttentionRows(s.rows, heads, 0.4), tr, "swapped")
    wide = {name: shared(a[name], s.n_head, s.group) for name in "kv"}
    wanted = ref.scores(a["q"], wide["k"], heads, 0.4, s.pos, s.rows)
    back = ref.scores(wide["k"], a["q"], heads, 0.4, s.pos, s.rows)
    pattern = ops.softmax(b, y, heads, "pattern")
    z = ops.attend(b, pattern, v, ops.AttentionRows(s.rows, heads), "z", b.style.dtype, s.group)
    used = slice(s.rows * heads)

    def flat(cube: Array) -> Array:
        return cube.transpose(1, 0, 2).reshape(-1, cube.shape[2])

    return [
        Want(y, flat(wanted), lambda m: m[used], bare=True),
        Want(swapped, flat(back), lambda m: m[used], bare=True),
        Want(z, ref.attend(ref.softmax(wanted), wide["v"])),
    ]


def grouped_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    heads, pos = s.n_head * s.group, min(s.pos, b.limits.max_texture_size - 10)
    v = b.normal("v", pos + 1, 4 * s.d4 * s.n_head, role="state")
    x, w = b.given("x", 3 * b.rng.standard_normal((heads, pos + 1))), b.weight("w", v.cols * s.group, s.cols)
    b.pos = pos
    z = ops.attend_row(b, x, v, heads, "z", s.least, s.group)
    y = ops.combine(b, ops.matvec(b, z, w, "partial_sums", contiguous=s.contiguous), "y")
    score = b.held["x"].reshape(1, heads, -1).transpose(1, 0, 2)
    whole = ref.attend(ref.softmax(score), shared(b.held["v"], s.n_head, s.group))
    return [Want(y, ref.matmul(whole, b.held["w"][: w.rows]))]


def attend_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records attention of a few texts in shared caches. Keys and values that no text may read are NaN."""
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
    """Records queries, keys and values of a few texts, written to rows of the shared caches."""
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
    """Records a copy of a prompt's caches to the shared caches.

    Rows past the end of the prompt's caches repeat the last row of these caches.
    """
    tall(b)
    width, b.row, b.pos = 4 * s.d4 * s.n_head, 2, 3
    k, v, to_k, to_v = (b.normal(name, n, width, role="state") for name, n in zip("kvrs", (9, 9, 20, 20), strict=True))
    after = {name: b.held[name].copy() for name in "rs"}
    ops.adopt(b, k, v, to_k, to_v, 8)
    for name, now in zip("kv", after.values(), strict=True):
        now[2:10] = b.held[name][np.minimum(3 + np.arange(8), 8)]
    return [Want(to_k, after["r"]), Want(to_v, after["s"])]


def heads(b: Bench, s: SimpleNamespace, name: str) -> Tensor:
    """Returns queries, keys or values of all sequences."""
    rows, cols = s.rows * s.batch, 4 * s.d4 * s.n_head
    return b.normal(name, rows, cols, b.heads(rows, cols))


def score_tiles(b: Bench, s: SimpleNamespace) -> int:
    """Returns the number of row tiles of scores. With several sequences, it must divide a sequence's length."""
    unfolded(b)
    return int(np.gcd(s.rows, b.style.tiles[0])) if s.batch > 1 else b.style.tiles[0]


def score_rows(b: Bench, s: SimpleNamespace, dtype: str = "f32") -> tuple[Layout, int]:
    """Returns the layout of the scores (or attention patterns) of whole texts, and its number of unpadded rows."""
    tr, tc = score_tiles(b, s), FORMATS[dtype].column_tiles_per_texel
    return Layout(-(-s.rows // tr) * tr * s.n_head * s.batch, s.rows, (tr, tc), dtype), s.rows * s.batch * s.n_head


def reached(b: Bench, s: SimpleNamespace) -> Array:
    """Returns 1 where a token may attend to a key, and 0 elsewhere, where patterns and gradients of scores are 0."""
    positions = np.arange(score_rows(b, s)[0].rows) // (s.n_head * s.batch)
    return (np.arange(s.rows) <= positions[:, None]).astype(float)


def scores_batch(b: Bench, s: SimpleNamespace) -> list[Want]:
    q, k = heads(b, s, "q"), heads(b, s, "k")
    y = ops.scores(b, q, k, ops.AttentionRows(s.rows, s.n_head, 0.4, s.batch), score_tiles(b, s), "y")
    wanted = more.scores(b.held["q"], b.held["k"], s.n_head, 0.4, s.batch)
    return [Want(y, wanted, lambda m: m[: len(wanted)], bare=True)]


def attend_batch(b: Bench, s: SimpleNamespace) -> list[Want]:
    (layout, used), v = score_rows(b, s, b.style.dtype), heads(b, s, "v")
    x = b.given("x", b.rng.standard_normal((layout.rows, s.rows)) * reached(b, s), layout)
    z = ops.attend(b, x, v, ops.AttentionRows(s.rows, s.n_head, 0.7, s.batch), "z", "f32")
    return [Want(z, more.attend(b.held["x"][:used], b.held["v"], s.n_head, s.batch, 0.7))]


def pattern(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a softmax. Its result has the style's format, which the next product reads."""
    layout, used = score_rows(b, s)
    x, share = b.given("x", 3 * b.rng.standard_normal((layout.rows, s.rows)), layout), s.n_head * s.batch
    y = ops.softmax(b, x, share, "y", b.style.dtype)
    return [Want(y, more.softmax(b.held["x"][:used], share), lambda m: m[:used])]


def split_qkv_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    width = 4 * s.d4 * s.n_head
    x = b.normal("x", s.rows, 3 * width, b.many(s.rows, 3 * width))
    parts = tuple(b.scratch(name, b.heads(s.rows, width)) for name in "qkv")
    ops.split_qkv(b, x, *parts, "qkv")
    return Taped(parts, {"x": x}, ref.split_qkv)


def scores_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    given = {name: heads(b, s, name) for name in "qk"}
    y = ops.scores(b, *given.values(), ops.AttentionRows(s.rows, s.n_head, 0.4, s.batch), score_tiles(b, s), "y")
    return Taped((y,), given, lambda q, k: (more.scores(q, k, s.n_head, 0.4, s.batch),), rigid=True, dy=reached(b, s))


def softmax_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    layout, used = score_rows(b, s)
    x, share = b.given("x", 3 * b.rng.standard_normal((layout.rows, s.rows)), layout), s.n_head * s.batch
    y = ops.softmax(b, x, share, "y", b.style.dtype)
    how: dict[str, Any] = {"spare": True, "rigid": True, "given": layout}
    return Taped((y,), {"x": x}, lambda x: (more.softmax(x[:used], share),), {"x": used}, **how)


def attend_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    layout, used = score_rows(b, s, b.style.dtype)
    given = {"x": b.given("x", b.rng.standard_normal((layout.rows, s.rows)) * reached(b, s), layout)}
    given["v"] = heads(b, s, "v")
    z = ops.attend(b, *given.values(), ops.AttentionRows(s.rows, s.n_head, 0.7, s.batch), "z", b.style.dtype)

    def function(x: Array, v: Array) -> tuple[Array]:
        return (more.attend(x[:used], v, s.n_head, s.batch, 0.7),)

    return Taped((z,), given, function, {"x": used}, spare=True)


def wide_heads(s: SimpleNamespace) -> SimpleNamespace:
    """Returns the shape with the number of query heads as `n_head`."""
    return SimpleNamespace(**vars(s) | {"n_head": s.n_head * s.group})


def grouped_scores_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    tiles, heads = score_tiles(b, wide_heads(s)), s.n_head * s.group
    given = {"q": b.normal("q", s.rows * s.batch, 4 * s.d4 * heads)}
    given["k"] = b.normal("k", s.rows * s.batch, 4 * s.d4 * s.n_head)
    y = ops.scores(b, *given.values(), ops.AttentionRows(s.rows, heads, 0.4, s.batch), tiles, "y")

    def function(q: Array, k: Array) -> tuple[Array]:
        return (more.scores(q, shared(k, s.n_head, s.group), heads, 0.4, s.batch),)

    return Taped((y,), given, function, rigid=True, dy=reached(b, wide_heads(s)))


def grouped_attend_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    (layout, used), heads = score_rows(b, wide_heads(s)), s.n_head * s.group
    given = {"x": b.given("x", b.rng.standard_normal((layout.rows, s.rows)) * reached(b, wide_heads(s)), layout)}
    given["v"] = b.normal("v", s.rows * s.batch, 4 * s.d4 * s.n_head)
    z = ops.attend(b, *given.values(), ops.AttentionRows(s.rows, heads, 0.7, s.batch), "z", "f32", s.group)

    def function(x: Array, v: Array) -> tuple[Array]:
        return (more.attend(x[:used], shared(v, s.n_head, s.group), heads, s.batch, 0.7),)

    return Taped((z,), given, function, {"x": used}, spare=True)


CASES = {
    "split_qkv": Case(shapes(**ATTENTION, **PRODUCT, normed=FLAG), split_qkv, (2e-5, 8)),
    "scores": Case(shapes(**ATTENTION), scores, (4e-6, 2)),
    "softmax": Case(shapes(**ATTENTION), softmax, (1e-6, 8)),
    "attend": Case(shapes(**ATTENTION), attend, (4e-6, 2)),
    "attention": Case(shapes(**ATTENTION), attention, (1e-5, 4)),
    "attend_row": Case(shapes(**ATTENTION | RANGES | {"contiguous": CONTIGUOUS}), attend_row, (2e-5, 8)),
    "attend_ranges": Case(
        shapes(
            **ATTENTION | RANGES | GROUP | {"contiguous": ROW["contiguous"]}, window=st.sampled_from([0, 21, 3, 300])
        ),
        attend_ranges,
        (2e-5, 8),
    ),
    "set_pattern": Case(shapes(**ATTENTION), set_pattern, (0.0, 1)),
    "grouped": Case(shapes(**ATTENTION, **GROUP), grouped, (1e-5, 16)),
    "grouped_row": Case(
        shapes(**ATTENTION | RANGES | GROUP | {"contiguous": ROW["contiguous"]}), grouped_row, (2e-5, 8)
    ),
    "attend_rows": Case(
        shapes(
            **FEW_HEADS,
            texts=st.integers(1, 8),
            group=st.integers(1, 3),
            positions=st.sampled_from([40, 5, 70]),
            least=st.sampled_from([16, 128]),
        ),
        attend_rows,
        (2e-5, 8),
    ),
    "split_rows": Case(shapes(**FEW, **FEW_HEADS), split_rows, (4e-5, 8)),
    "adopt": Case(shapes(**FEW_HEADS), adopt, (0.0, 0)),
}


TRAINING = {
    "scores_batch": Case(shapes(**HEADS), scores_batch, (4e-6, 2)),
    "attend_batch": Case(shapes(**HEADS), attend_batch, (1e-5, 2)),
    "pattern": Case(shapes(**HEADS), pattern, (1e-6, 8)),
}


VJPS = {
    "split_qkv": VjpCase(shapes(**HEADS, **DY), split_qkv_vjp, (0.0, 1)),
    "scores": VjpCase(shapes(**HEADS, **DY), scores_vjp, (1e-5, 2)),
    "softmax": VjpCase(shapes(**HEADS, **DY), softmax_vjp, (2e-6, 16)),
    "attend": VjpCase(shapes(**HEADS, **DY), attend_vjp, (1e-5, 2)),
    "grouped_scores": VjpCase(shapes(**HEADS, **GROUP, **DY), grouped_scores_vjp, (1e-5, 2)),
    "grouped_attend": VjpCase(shapes(**HEADS, **GROUP, **DY), grouped_attend_vjp, (1e-5, 2)),
}
