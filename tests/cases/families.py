"""Defines cases of ops that only some model families need: norms of heads, windows, soft caps, partial rotation."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from helpers import reference as ref
from helpers import reference_training as more
from helpers.reference_llama import rms, rotated, silu
from hypothesis import strategies as st

from cases.attention import reached, score_tiles
from cases.case import Array, Case, Taped, VjpCase, Want, tall
from cases.draws import ATTENTION, COLS, DY, EPS, FLAG, HEADS, MATRIX, ROTATIONS, ROW, WIDE, shapes
from cases.rotary import frequencies, heads_of, padded_heads, rotated_heads, rotation
from glgpt import ops
from glgpt.program.layout import Layout, texels

if TYPE_CHECKING:
    from helpers.op_bench import Bench

CAP = 1.5


def capped(x: Array) -> Array:
    return CAP * np.tanh(x / CAP)


def head_norm(x: Array, gain: Array, s: SimpleNamespace) -> Array:
    """Returns padded heads `[T, heads * texels(d)]` after an RMS norm of each head, or of all heads if `together`."""
    wide, offset = texels(s.d_head), 1.0 if s.offset else 0.0
    cube = x.reshape(len(x), s.n_head, wide)[:, :, : s.d_head]
    axes = (1, 2) if s.together else (2,)
    cube = cube / np.sqrt((cube * cube).mean(axis=axes, keepdims=True) + EPS)
    factor = gain.reshape(1, -1, wide)[:, :, : s.d_head] if s.together else gain.reshape(1, 1, -1)
    return padded_heads((cube * (factor + offset)).reshape(len(x), -1), s.n_head)


def part_rotated(x: Array, s: SimpleNamespace, positions: Array) -> Array:
    """Returns padded heads. The first columns of each head are rotated and multiplied by 1.25."""
    wide, turns = texels(s.d_head), part_of_frequencies(s)
    cube = x.reshape(len(x), s.n_head, wide)[:, :, : s.d_head].transpose(1, 0, 2)
    first = 2 * len(turns)
    found = np.concatenate([1.25 * rotated(cube[:, :, :first], positions, turns), cube[:, :, first:]], axis=2)
    return padded_heads(found.transpose(1, 0, 2).reshape(len(x), -1), s.n_head)


def part_of_frequencies(s: SimpleNamespace) -> Array:
    return frequencies(s)[: max(1, len(frequencies(s)) // 2)]


def gain_of(b: Bench, s: SimpleNamespace) -> Any:
    if s.together:
        return b.given("gain", padded_heads(b.rng.standard_normal((1, s.n_head * s.d_head)), s.n_head))
    return b.normal("gain", 1, s.d_head)


def normed_columns(b: Bench, s: SimpleNamespace, columns: ops.HeadColumns, gain: Any) -> ops.HeadColumns:
    scales = ops.head_scales(b, columns, s.n_head, s.d_head, EPS, "scales", s.together)
    norm = ops.HeadNorm(scales, gain, 1.0 if s.offset else 0.0)
    return ops.HeadColumns(columns.x, columns.first, norm, columns.normed)


def part_of_rotation(s: SimpleNamespace) -> ops.Rotation:
    return ops.Rotation(s.d_head, part_of_frequencies(s).tolist(), 1.25)


def normed_heads(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records the norm, then the partial rotation, of heads in the middle of a product's columns."""
    tall(b)
    wide, first = s.n_head * texels(s.d_head), 4 * s.before
    values = padded_heads(b.rng.standard_normal((s.rows, s.n_head * s.d_head)), s.n_head)
    beside = b.rng.standard_normal((s.rows, first))
    whole = np.concatenate([beside, values, beside], axis=1)
    x, gain = b.given("x", whole, b.many(s.rows, whole.shape[1])), gain_of(b, s)
    state = b.normal("state", s.pos + s.rows + 2, wide, role="state")
    b.pos, after = s.pos, b.held["state"].copy()
    columns = normed_columns(b, s, ops.HeadColumns(x, s.before), gain)
    ops.rotary(b, columns, state, part_of_rotation(s), "y")
    given = head_norm(b.held["x"][:, first : first + wide], b.held["gain"], s)
    after[s.pos : s.pos + s.rows] = part_rotated(given, s, s.pos + np.arange(s.rows))
    return [Want(state, after)]


def normed_heads_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a product of one RMS-normed row, plus a bias, whose heads are then normed and partly rotated."""
    tall(b)
    wide = s.n_head * texels(s.d_head)
    x, own, gain = b.normal("a", 1, s.inner), b.normal("own", 1, s.inner), gain_of(b, s)
    columns = padded_heads(b.rng.standard_normal((texels(s.inner), s.n_head * s.d_head)), s.n_head)
    columns[s.inner :] = 0
    w, bias = b.given("w", columns), b.given("bias", padded_heads(np.ones((1, s.n_head * s.d_head)), s.n_head))
    state = b.normal("state", s.pos + 3, wide, role="state")
    b.pos, after = s.pos, b.held["state"].copy()
    row = ops.row_sum(b, x, own, 1e-5, "row")
    product = ops.matvec(b, row.scaled, w, "product", contiguous=s.contiguous).plus(bias)
    heads = normed_columns(b, s, ops.HeadColumns(product, normed=(row, None)), gain)
    ops.rotary(b, heads, state, part_of_rotation(s), "y")
    wanted = rms(b.held["a"], b.held["own"], 1e-5) @ b.held["w"][: s.inner] + b.held["bias"]
    after[s.pos] = part_rotated(head_norm(wanted, b.held["gain"], s), s, np.array([s.pos]))[0]
    return [Want(state, after)]


def limited_scores(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records scores with a window and a soft cap, and attention with these scores."""
    total, heads = s.pos + s.rows, s.n_head
    q, k, v = (b.normal(name, total, 4 * s.d4 * heads, role="state") for name in "qkv")
    b.pos, a, limits = s.pos, b.held, ops.ScoreLimits(s.window, CAP)
    y = ops.scores(b, q, k, ops.AttentionRows(s.rows, heads, 0.4, limits=limits), b.style.tiles[0], "y")
    z = ops.attend(b, ops.softmax(b, y, heads, "pattern"), v, ops.AttentionRows(s.rows, heads), "z", b.style.dtype)
    wanted = ref.scores(a["q"], a["k"], heads, 0.4, s.pos, s.rows)
    past = s.pos + np.arange(s.rows)[:, None] - np.arange(total)
    limited = np.where((past < 0) | (past >= s.window), ref.MASKED, capped(wanted))
    flat = limited.transpose(1, 0, 2).reshape(-1, total)
    return [Want(y, flat, lambda m: m[: s.rows * heads], bare=True), Want(z, ref.attend(ref.softmax(limited), a["v"]))]


def normed_branch(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a row plus the RMS norm of a product, and this sum times a gain.

    1 is added to this gain, and to the gain of the norm.
    """
    x, own, gain = b.normal("x", 1, s.cols), b.normal("own", 1, s.cols), b.normal("gain", 1, s.cols)
    w, bias = b.weight("w", s.inner, s.cols), b.normal("bias", 1, s.cols)
    sums = ops.matvec(b, b.normal("a", 1, s.inner), w, "sums", contiguous=s.contiguous).plus(bias)
    branch = ops.row_sum(b, None, own, 1e-5, "branch", sums, offset=1.0)
    row, a = ops.row_sum(b, x, gain, 1e-5, "row", branch, offset=1.0), b.held
    product = a["a"] @ a["w"][: s.inner] + a["bias"]
    total = a["x"] + rms(product, a["own"] + 1, 1e-5)
    return [Want(branch.x, product), Want(row.x, total), Want(row.scaled, total * (a["gain"] + 1))]


def gated_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records one row of a gated MLP from the partial sums of its two products. Their input is RMS-normed."""
    x, gain = b.normal("x", 1, s.inner), b.normal("gain", 1, s.inner)
    row = ops.row_sum(b, x, gain, 1e-5, "row")
    gate, up = (
        ops.matvec(b, row.scaled, b.weight(name, s.inner, s.cols), name, contiguous=s.contiguous).plus(
            b.normal(f"{name}.bias", 1, s.cols)
        )
        for name in "vw"
    )
    y = ops.combine(b, gate, "y", act="silu", normed=(row, None), times=up)
    a = b.held
    normed = rms(a["x"], a["gain"], 1e-5)
    v, w = (normed @ a[name][: s.inner] + a[f"{name}.bias"] for name in "vw")
    return [Want(y, silu(v) * w)]


def keys_and_values_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records keys and values of a row in one pass: first from two products, then from two parts of one product."""
    tall(b)
    wide, x = s.n_head * texels(s.d_head), b.normal("a", 1, s.inner)
    both = padded_heads(b.rng.standard_normal((texels(s.inner), 2 * s.n_head * s.d_head)), 2 * s.n_head)
    both[s.inner :] = 0
    parts = {"u": both[:, :wide], "v": both[:, wide:], "w": both}
    u, v, w = (ops.matvec(b, x, b.given(name, part), f"{name}.sums") for name, part in parts.items())
    states = {name: b.normal(name, s.pos + 3, wide, role="state") for name in ("k1", "v1", "k2", "v2")}
    b.pos, after = s.pos, {name: b.held[name].copy() for name in states}
    second, other = ops.HeadColumns(v), ops.HeadColumns(w, wide // 4)
    ops.rotary(b, ops.HeadColumns(u), states["k1"], rotation(s), "k1", copied=(second, states["v1"]))
    ops.rotary(b, ops.HeadColumns(w), states["k2"], rotation(s), "k2", copied=(other, states["v2"]))
    keys, values = (b.held["a"] @ b.held[name][: s.inner] for name in "uv")
    for number in "12":
        after[f"k{number}"][s.pos] = rotated_heads(keys, s, np.array([s.pos]))[0]
        after[f"v{number}"][s.pos] = values[0]
    return [Want(states[name], after[name]) for name in states]


def variants(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a scaled embedding, an RMS norm with an offset, a squared ReLU and a soft cap."""
    ids = b.given("ids", b.rng.integers(0, s.vocab, (s.rows, 1)), role="input")
    x = ops.embed(b, ids, b.weight("wte", s.cols, s.vocab), None, b.stream(s.rows, s.cols), scale=1.5)
    gain, layout = b.normal("gain", 1, s.cols), b.many(s.rows, s.cols)
    y = ops.rms_norm(b, x, gain, 1e-2, layout, "y", 1.0)
    squared, cap = ops.act(b, x, "relu2", layout, "squared"), ops.act(b, x, CAP, layout, "cap")
    wanted = 1.5 * b.held["wte"][: s.cols, b.held["ids"][:, 0].astype(int)].T
    return [
        Want(x, wanted),
        Want(y, rms(wanted, b.held["gain"] + 1, 1e-2)),
        Want(squared, np.maximum(wanted, 0) ** 2),
        Want(cap, capped(wanted)),
    ]


def normed_heads_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    rows, wide = s.rows * s.batch, s.n_head * texels(s.d_head)
    given = {"x": heads_of(b, s, "x", rows), "gain": gain_of(b, s)}
    y = b.scratch("y", Layout(rows, wide))
    columns = normed_columns(b, s, ops.HeadColumns(given["x"]), given["gain"])
    ops.rotary(b, columns, y, part_of_rotation(s), "x.y", s.batch)
    live = padded_heads(np.ones((rows, s.n_head * s.d_head)), s.n_head)
    positions = np.arange(rows) // s.batch

    def function(x: Array, gain: Array) -> tuple[Array]:
        return (part_rotated(head_norm(x, gain, s), s, positions),)

    return Taped((y,), given, function, rigid=True, dy=live)


def part_of_product_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    """Records the partial rotation of heads that are the second part of a product."""
    rows, wide, first = s.rows * s.batch, s.n_head * texels(s.d_head), 4 * s.before
    values = padded_heads(b.rng.standard_normal((rows, s.n_head * s.d_head)), s.n_head)
    whole = np.concatenate([b.rng.standard_normal((rows, first)), values], axis=1)
    x, y = b.given("x", whole, b.many(rows, whole.shape[1])), b.scratch("y", Layout(rows, wide))
    ops.rotary(b, ops.HeadColumns(x, s.before), y, part_of_rotation(s), "x.y", s.batch)
    live = padded_heads(np.ones((rows, s.n_head * s.d_head)), s.n_head)
    positions = np.arange(rows) // s.batch
    return Taped((y,), {"x": x}, lambda x: (part_rotated(x[:, first:], s, positions),), rigid=True, dy=live)


def limited_scores_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    given = {name: b.normal(name, s.rows * s.batch, 4 * s.d4 * s.n_head) for name in "qk"}
    rows = ops.AttentionRows(s.rows, s.n_head, 0.4, s.batch, ops.ScoreLimits(0, CAP))
    y = ops.scores(b, *given.values(), rows, score_tiles(b, s), "y")

    def function(q: Array, k: Array) -> tuple[Array]:
        found = more.scores(q, k, s.n_head, 0.4, s.batch)
        return (np.where(found == ref.MASKED, found, capped(found)),)

    return Taped((y,), given, function, rigid=True, dy=reached(b, s))


def offset_norm_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    given = {"x": b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols)), "gain": b.normal("gain", 1, s.cols)}
    y = ops.rms_norm(b, *given.values(), EPS, b.many(s.rows, s.cols), "y", 1.0)
    return Taped((y,), given, lambda x, gain: (rms(x, gain + 1, EPS),))


def act_variants_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    x = b.normal("x", s.rows, s.cols, b.many(s.rows, s.cols))
    squared = ops.act(b, x, "relu2", b.stream(s.rows, s.cols), "squared")
    cap = ops.act(b, x, CAP, b.stream(s.rows, s.cols), "cap")
    return Taped((squared, cap), {"x": x}, lambda x: (np.maximum(x, 0) ** 2, capped(x)))


NORMED = ROTATIONS | {"together": FLAG, "offset": FLAG}
BEFORE = {"before": st.sampled_from([3, 0, 1])}
AT = {"rows": st.integers(1, 13), "pos": st.sampled_from([4, 0, 19])}
CASES = {
    "normed_heads": Case(shapes(**NORMED, **AT, **BEFORE), normed_heads, (6e-5, 16)),
    "normed_heads_row": Case(shapes(**NORMED, **ROW, pos=st.sampled_from([4, 0, 19])), normed_heads_row, (4e-5, 16)),
    "limited_scores": Case(shapes(**ATTENTION, window=st.sampled_from([3, 1, 30])), limited_scores, (1e-5, 16)),
    "normed_branch": Case(shapes(**ROW, cols=COLS), normed_branch, (1e-4, 16)),
    "gated_row": Case(shapes(**ROW, cols=COLS), gated_row, (1e-4, 16)),
    "keys_and_values_row": Case(
        shapes(**ROTATIONS, **ROW, pos=st.sampled_from([4, 0, 19])), keys_and_values_row, (4e-5, 16)
    ),
    "variants": Case(shapes(**MATRIX, vocab=st.integers(1, 64)), variants, (1e-5, 8)),
}
VJPS = {
    "normed_heads": VjpCase(shapes(**HEADS | NORMED, **DY), normed_heads_vjp, (2e-5, 16)),
    "part_of_product": VjpCase(shapes(**HEADS | ROTATIONS | BEFORE, **DY), part_of_product_vjp, (1e-5, 8)),
    "limited_scores": VjpCase(shapes(**HEADS, **DY), limited_scores_vjp, (1e-5, 4)),
    "offset_norm": VjpCase(shapes(**WIDE, **DY), offset_norm_vjp, (2e-5, 8)),
    "act_variants": VjpCase(shapes(**MATRIX, **DY), act_variants_vjp, (1e-5, 8)),
}
