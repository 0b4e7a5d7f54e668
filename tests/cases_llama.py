"""More rows of `cases` and `cases_vjp`: the ops that Llama adds, forward and on a tape, and its whole forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import reference as ref
import reference_training as more
from cases import ATTENTION, COLS, MATRIX, RANGES, Array, Case, Want, shapes
from cases_training import HEADS, reached, score_rows, score_tiles
from cases_vjp import DY, EPS, WIDE, Taped, VjpCase
from hypothesis import strategies as st

from glgpt import ops
from glgpt.models.families.llama import LlamaConfig
from glgpt.program.layout import Layout, texels

if TYPE_CHECKING:
    from test_ops import Bench

FREQUENCY = 0.7


def rms(x: Array, gain: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * gain


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def rotated(x: Array, positions: Array, frequencies: Array) -> Array:
    """Returns x `[.., T, d]` with its columns i and i + d / 2 rotated by positions times frequencies[i]."""
    angle = positions[:, None] * np.asarray(frequencies)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)


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


def rms_norm(b: Bench, s: SimpleNamespace) -> list[Want]:
    x, gain = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols)), b.normal("gain", 1, s.cols)
    y = ops.rms_norm(b, x, gain, 1e-5, b.many(s.rows, s.cols), "y")
    return [Want(y, rms(b.held["x"], b.held["gain"], 1e-5))]


def rms_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records an RMS norm, two products without biases and a gate for one row, as in decoding."""
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


def tall(b: Bench) -> None:
    """Raises a style's limit for caches and weights that are not folded; it stays far below a device's."""
    b.limits = replace(b.limits, max_texture_size=1024)


def rotary(b: Bench, s: SimpleNamespace) -> list[Want]:
    tall(b)
    wide = s.n_head * texels(s.d_head)
    x, state = heads_of(b, s, "x", s.rows), b.normal("state", s.pos + s.rows + 2, wide, role="state")
    b.pos, after = s.pos, b.held["state"].copy()
    ops.rotary(b, ops.HeadColumns(x), state, rotation(s), "y")
    after[s.pos : s.pos + s.rows] = rotated_heads(b.held["x"], s, s.pos + np.arange(s.rows))
    return [Want(state, after)]


def rotary_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records one row from its partial sums, after an RMS norm."""
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


def multiply(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))
    y = ops.multiply(b, x, b.normal("z", s.rows, s.cols, b.many(s.rows, s.cols)), b.many(s.rows, s.cols), "y")
    return [Want(y, b.held["x"] * b.held["z"])]


def embed_tokens(b: Bench, s: SimpleNamespace) -> list[Want]:
    ids = b.given("ids", b.rng.integers(0, s.vocab, (s.rows, 1)), role="input")
    y = ops.embed(b, ids, b.weight("wte", s.cols, s.vocab), None, b.stream(s.rows, s.cols))
    return [Want(y, b.held["wte"][: s.cols, b.held["ids"][:, 0].astype(int)].T)]


def shared(x: Array, n_head: int, group: int) -> Array:
    """Returns heads `[rows, n_head * d]` repeated for the heads that share each."""
    cube = x.reshape(len(x), n_head, -1)
    return np.repeat(cube, group, axis=1).reshape(len(x), -1)


def grouped(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Scores and values of query heads that share keys, and scores with queries and keys swapped."""
    heads, total = s.n_head * s.group, s.pos + s.rows
    q = b.normal("q", total, 4 * s.d4 * heads, role="state")
    k, v = (b.normal(name, total, 4 * s.d4 * s.n_head, role="state") for name in "kv")
    b.pos, a, tr = s.pos, b.held, b.style.tiles[0]
    y = ops.scores(b, q, k, s.rows, tr, heads, 0.4, "y")
    swapped = ops.scores(b, k, q, s.rows, tr, heads, 0.4, "swapped")
    wide = {name: shared(a[name], s.n_head, s.group) for name in "kv"}
    wanted = ref.scores(a["q"], wide["k"], heads, 0.4, s.pos, s.rows)
    back = ref.scores(wide["k"], a["q"], heads, 0.4, s.pos, s.rows)
    pattern = ops.softmax(b, y, heads, "pattern")
    z = ops.attend(b, pattern, v, s.rows, heads, "z", b.style.dtype, group=s.group)
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


def rms_norm_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    given = {"x": b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols)), "gain": b.normal("gain", 1, s.cols)}
    y = ops.rms_norm(b, *given.values(), EPS, b.many(s.rows, s.cols), "y")
    return Taped((y,), given, lambda x, gain: (rms(x, gain, EPS),))


def multiply_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    layout = b.many(s.rows, s.cols)
    given = {"a": b.normal("a", s.rows, s.cols, layout), "b": b.normal("b", s.rows, s.cols, layout)}
    return Taped((ops.multiply(b, *given.values(), layout, "y"),), given, lambda a, b: (a * b,))


def silu_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    x = b.given("x", 4 * b.rng.standard_normal((s.rows, s.cols)), b.many(s.rows, s.cols))
    y = ops.act(b, x, "silu", b.stream(s.rows, s.cols), "y")
    return Taped((y,), {"x": x}, lambda x: (silu(x),))


def rotary_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    rows, wide = s.rows * s.batch, s.n_head * texels(s.d_head)
    x = heads_of(b, s, "x", rows)
    y = b.scratch("y", Layout(rows, wide))
    ops.rotary(b, ops.HeadColumns(x), y, rotation(s), "x.y", s.batch)
    live = padded_heads(np.ones((rows, s.n_head * s.d_head)), s.n_head)
    positions = np.arange(rows) // s.batch
    return Taped((y,), {"x": x}, lambda x: (rotated_heads(x, s, positions),), rigid=True, dy=live)


def grouped_scores_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    tiles, heads = score_tiles(b, wide_heads(s)), s.n_head * s.group
    given = {"q": b.normal("q", s.rows * s.batch, 4 * s.d4 * heads)}
    given["k"] = b.normal("k", s.rows * s.batch, 4 * s.d4 * s.n_head)
    y = ops.scores(b, *given.values(), s.rows, tiles, heads, 0.4, "y", s.batch)

    def function(q: Array, k: Array) -> tuple[Array]:
        return (more.scores(q, shared(k, s.n_head, s.group), heads, 0.4, s.batch),)

    return Taped((y,), given, function, rigid=True, dy=reached(b, wide_heads(s)))


def grouped_attend_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    (layout, used), heads = score_rows(b, wide_heads(s)), s.n_head * s.group
    given = {"x": b.given("x", b.rng.standard_normal((layout.rows, s.rows)) * reached(b, wide_heads(s)), layout)}
    given["v"] = b.normal("v", s.rows * s.batch, 4 * s.d4 * s.n_head)
    z = ops.attend(b, *given.values(), s.rows, heads, "z", "f32", s.batch, 0.7, s.group)

    def function(x: Array, v: Array) -> tuple[Array]:
        return (more.attend(x[:used], shared(v, s.n_head, s.group), heads, s.batch, 0.7),)

    return Taped((z,), given, function, {"x": used}, spare=True)


def wide_heads(s: SimpleNamespace) -> SimpleNamespace:
    """Returns the shape with as many heads as the scores have."""
    return SimpleNamespace(**vars(s) | {"n_head": s.n_head * s.group})


GROUP = {"group": st.sampled_from([2, 1, 3])}
ROTATIONS = {
    "n_head": st.integers(1, 3),
    "d_head": st.sampled_from([6, 8, 2, 16]),
    "rotate": st.sampled_from([True, False]),
}
ROW = {"inner": COLS, "contiguous": st.sampled_from((0, 2, 4))}
LLAMA = {
    "rms_norm": Case(shapes(**MATRIX), rms_norm, (4e-6, 8)),
    "rms_row": Case(shapes(**ROW, cols=COLS), rms_row, (1e-4, 16)),
    "rotary": Case(shapes(**ROTATIONS, rows=st.integers(1, 13), pos=st.sampled_from([4, 0, 900])), rotary, (3e-4, 8)),
    "rotary_row": Case(shapes(**ROTATIONS, **ROW, pos=st.sampled_from([4, 0, 19])), rotary_row, (4e-5, 16)),
    "multiply": Case(shapes(**MATRIX), multiply, (0.0, 1)),
    "embed_tokens": Case(shapes(**MATRIX, vocab=st.integers(1, 64)), embed_tokens, (0.0, 1)),
    "grouped": Case(shapes(**ATTENTION, **GROUP), grouped, (1e-5, 16)),
    "grouped_row": Case(
        shapes(**ATTENTION | RANGES | GROUP | {"contiguous": ROW["contiguous"]}), grouped_row, (2e-5, 8)
    ),
}
LLAMA_VJPS = {
    "rms_norm": VjpCase(shapes(**WIDE, **DY), rms_norm_vjp, (2e-5, 8)),
    "multiply": VjpCase(shapes(**MATRIX, **DY), multiply_vjp, (0.0, 4)),
    "silu": VjpCase(shapes(**MATRIX, **DY), silu_vjp, (4e-6, 8)),
    "rotary": VjpCase(shapes(**HEADS | ROTATIONS, **DY), rotary_vjp, (1e-5, 8)),
    "grouped_scores": VjpCase(shapes(**HEADS, **GROUP, **DY), grouped_scores_vjp, (1e-5, 2)),
    "grouped_attend": VjpCase(shapes(**HEADS, **GROUP, **DY), grouped_attend_vjp, (1e-5, 2)),
}
SHAPE = {"group": 2, "d_head": 6, "rotate": True}


def llama(config: LlamaConfig, weights: Mapping[str, Any], ids: list[int]) -> Array:
    """Returns the logits of a whole Llama in float64, `[T, vocab]`."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    d, heads, kv, eps = config.d_head, config.n_head, config.n_kv_head, config.layer_norm_epsilon
    positions = np.arange(len(ids))
    x = w["embed_tokens.weight"][ids]
    for i in range(config.n_layer):
        layer = f"layers.{i}."
        y = rms(x, w[layer + "input_layernorm.weight"], eps)
        q, k, v = (
            (y @ w[f"{layer}self_attn.{part}_proj.weight"].T).reshape(len(ids), -1, d).transpose(1, 0, 2)
            for part in "qkv"
        )
        q, k = (rotated(part, positions, np.array(config.frequencies)) for part in (q, k))
        k, v = (np.repeat(part, heads // kv, axis=0) for part in (k, v))
        scores = q @ k.transpose(0, 2, 1) * d**-0.5
        pattern = ref.softmax(np.where(np.tri(len(ids), dtype=bool), scores, -np.inf))
        z = (pattern @ v).transpose(1, 0, 2).reshape(len(ids), -1)
        x = x + z @ w[layer + "self_attn.o_proj.weight"].T
        y = rms(x, w[layer + "post_attention_layernorm.weight"], eps)
        gate, up = (y @ w[f"{layer}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + silu(gate) * up @ w[layer + "mlp.down_proj.weight"].T
    return rms(x, w["norm.weight"], eps) @ w[config.output].T
