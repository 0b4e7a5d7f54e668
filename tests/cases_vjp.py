"""Test cases of gradients, one for each op: shapes to draw, how it is recorded on a tape, and the op in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from cases import ACTS, COLS, FLAG, MATRIX, ROWS, VOCAB, Array, Into, shapes
from cases_training import BATCH, HEADS, PART, RATES, SPARE, heads, logits, reached, score_rows, score_tiles, targets
from helpers import reference as ref
from helpers import reference_training as more
from hypothesis import strategies as st

from glgpt import ops
from glgpt.program.layout import Layout, fold
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from test_ops import Bench


@dataclass(frozen=True)
class Taped:
    """An op on the tape.

    `function` computes its outputs in float64 from the matrices of `inputs`, by name; rows that it omits at the end of
    an output are unused. For some inputs only the first `rows` count: the other rows have no gradient, or, if they are
    `spare`, any gradient. `rigid`: the outputs' gradients have the outputs' layouts, or that of `given`, and are zero
    where `dy` is.
    """

    outputs: tuple[Tensor, ...]
    inputs: dict[str, Tensor]
    function: Callable[..., tuple[Array, ...]]
    rows: dict[str, int] = field(default_factory=dict)
    spare: bool = False
    rigid: bool = False
    given: Layout | None = None
    dy: Array | float = 1.0


@dataclass(frozen=True)
class VjpCase:
    """An op's vjp; `near` = (atol, k): each value of a gradient g may be off by atol + k eps |g|.

    For packed tensors, eps is that of float16, and a value may be off by `halves` more: the sum of what rounding
    intermediate values to float16 adds, each by 2^-11 of its size.
    """

    shape: st.SearchStrategy[SimpleNamespace]
    record: Callable[[Bench, SimpleNamespace], Taped]
    near: tuple[float, float]
    halves: float = 0.0


@dataclass(frozen=True)
class Backward:
    """A recorded backward pass: the gradient of each input, the outputs' gradients, and the sums it started with."""

    taped: Taped
    gradients: dict[str, Tensor]
    dys: list[Array]
    so_far: dict[str, Array]


def backward(b: Bench, case: str, s: SimpleNamespace, cases: Mapping[str, VjpCase] | None = None) -> Backward:
    """Records a case and its backward pass from given gradients; its outputs are the inputs' gradients."""
    record = (cases or VJPS)[case].record
    with b.taping() as tape:
        taped = record(b, s)
    sums, dys = dict[Tensor, Tensor](), []
    for i, y in enumerate(taped.outputs):
        plain = s.plain_dy and not taped.rigid
        layout = fold(y.rows, y.cols, b.limits.max_texture_size) if plain else taped.given or y.layout
        values = np.ones((1, 4)) if case == "cross_entropy" else b.rng.standard_normal((y.rows, y.cols))
        sums[y] = b.given(f"dy.{i}", values * taped.dy, layout)
        dys.append(b.held[f"dy.{i}"])
    so_far = dict[str, Array]()
    for name, x in taped.inputs.items() if s.so_far and case != "cross_entropy" else ():
        values = b.rng.standard_normal((x.rows, x.cols))
        values[taped.rows.get(name, x.rows) :] = 0
        fused = fold(x.rows, x.cols, b.limits.max_texture_size, b.style.tiles[1])
        fused = Layout(x.rows, x.cols, (b.style.tiles[0], fused.tiles[1]))  # the layout that a product writes
        sums[x] = b.given(f"so_far.{name}", values, x.layout if s.plain_dy else fused)
        so_far[name] = b.held[f"so_far.{name}"]
    found = tape.backward(sums)
    gradients = {name: found[x] for name, x in taped.inputs.items()}
    for name, gradient in gradients.items():
        b.output(gradient, name)
    return Backward(taped, gradients, dys, so_far)


def matmul(b: Bench, s: SimpleNamespace, split_k: int = 1) -> Taped:
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


def norm(b: Bench, s: SimpleNamespace) -> Taped:
    given = {"x": b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))}
    given |= {name: b.normal(name, 1, s.cols) for name in ("gain", "bias")}
    y = ops.norm(b, *given.values(), EPS, b.many(s.rows, s.cols), "y")
    return Taped((y,), given, lambda x, gain, bias: (ref.norm(x, gain, bias, EPS),))


EPS = 0.1  # of the norm: large enough that rows of one or a few values have gradients worth comparing


def act(b: Bench, s: SimpleNamespace) -> Taped:
    values = 4 * b.rng.standard_normal((s.rows, s.cols))
    values += np.copysign(1e-3, values)  # away from relu's corner, where a difference is not the slope
    x = b.given("x", values, b.many(s.rows, s.cols))
    y = ops.act(b, x, s.act, b.many(s.rows, s.cols), "y")
    return Taped((y,), {"x": x}, lambda x: (ref.act(x, s.act),))


def add(b: Bench, s: SimpleNamespace) -> Taped:
    layout = b.stream(s.rows, s.cols)
    given = {"a": b.normal("a", s.rows, s.cols, layout), "b": b.normal("b", s.rows, s.cols, b.many(s.rows, s.cols))}
    return Taped((ops.add(b, *given.values(), layout, "y"),), given, lambda a, b: (a + b,))


def dropout(b: Bench, s: SimpleNamespace) -> Taped:
    x = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))
    b.row, b.more = s.row, {"seed": s.seed, "step": 7}
    kept = more.kept(s.rows, s.cols, s.rate, 3, s.seed, 7, s.row)
    return Taped((ops.dropout(b, x, s.rate, 3, "y"),), {"x": x}, lambda x: (x * kept,))


def embed(b: Bench, s: SimpleNamespace) -> Taped:
    rows, limit = s.rows * s.batch, b.limits.max_texture_size
    values = b.rng.integers(0, s.vocab, rows)  # some repeat, some are missing, and the last one is in a separate texel
    values[-1] = s.vocab - 1
    ids = b.given("ids", values[:, None], role="input")
    pairs = zip(
        ("order", "starts"), ops.sorted_index(values, s.vocab), ops.index_layouts(rows, s.vocab, limit), strict=True
    )
    order, starts = (b.given(name, matrix, layout, "input") for name, matrix, layout in pairs)
    given = {"wte": b.weight("wte", s.cols, s.vocab), "wpe": b.normal("wpe", s.rows + s.spare, s.cols)}
    y = ops.embed(b, ids, *given.values(), b.stream(rows, s.cols), batch=s.batch, index=(order, starts))
    return Taped((y,), given, lambda wte, wpe: (more.embed(values, wte[: s.cols], wpe, s.batch),), {"wte": s.cols})


def split_qkv(b: Bench, s: SimpleNamespace) -> Taped:
    width = 4 * s.d4 * s.n_head
    x = b.normal("x", s.rows, 3 * width, b.many(s.rows, 3 * width))
    parts = tuple(b.scratch(name, b.heads(s.rows, width)) for name in "qkv")
    ops.split_qkv(b, x, *parts, "qkv")
    return Taped(parts, {"x": x}, ref.split_qkv)


def scores(b: Bench, s: SimpleNamespace) -> Taped:
    given = {name: heads(b, s, name) for name in "qk"}
    y = ops.scores(b, *given.values(), s.rows, score_tiles(b, s), s.n_head, 0.4, "y", s.batch)
    return Taped((y,), given, lambda q, k: (more.scores(q, k, s.n_head, 0.4, s.batch),), rigid=True, dy=reached(b, s))


def softmax(b: Bench, s: SimpleNamespace) -> Taped:
    layout, used = score_rows(b, s)
    x, share = b.given("x", 3 * b.rng.standard_normal((layout.rows, s.rows)), layout), s.n_head * s.batch
    y = ops.softmax(b, x, share, "y", b.style.dtype)
    how: dict[str, Any] = {"spare": True, "rigid": True, "given": layout}
    return Taped((y,), {"x": x}, lambda x: (more.softmax(x[:used], share),), {"x": used}, **how)


def attend(b: Bench, s: SimpleNamespace) -> Taped:
    layout, used = score_rows(b, s, b.style.dtype)
    given = {"x": b.given("x", b.rng.standard_normal((layout.rows, s.rows)) * reached(b, s), layout)}
    given["v"] = heads(b, s, "v")
    z = ops.attend(b, *given.values(), s.rows, s.n_head, "z", b.style.dtype, s.batch, 0.7)

    def function(x: Array, v: Array) -> tuple[Array]:
        return (more.attend(x[:used], v, s.n_head, s.batch, 0.7),)

    return Taped((z,), given, function, {"x": used}, spare=True)


def cross_entropy(b: Bench, s: SimpleNamespace) -> Taped:
    """The backward pass starts here: the gradient is that of the scaled sum, whatever is given."""
    x, ids = logits(b, s), targets(b, s)
    wanted, dtype = b.held["targets"][:, 0].astype(int), b.style.dtype
    scale = None if dtype == "f32" else b.given("loss_scale", np.array([[4.0, 0, 0, 0]]), role="input")
    y, times = ops.cross_entropy(b, x, ids, 0.3, loss_scale=scale, dtype=dtype), 1.2 if scale else 0.3
    return Taped((y,), {"x": x}, lambda x: (np.array([[times * more.cross_entropy(x, wanted), 0, 0, 0]]),))


def recomputed(b: Bench, s: SimpleNamespace) -> Taped:
    """Records half a block of which only the input is stored."""
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


DY = {"so_far": FLAG, "plain_dy": FLAG}
WIDE = {"rows": st.sampled_from([29, 1, 7, 22]), "cols": st.sampled_from([37, 1, 6, 100])}
VJPS = {
    "split matmul": VjpCase(  # each of three slices is rounded to float16
        shapes(**WIDE, inner=COLS, bias=FLAG, residual=FLAG, **DY), lambda b, s: matmul(b, s, 3), (4e-5, 2), 6e-3
    ),
    "matmul": VjpCase(shapes(**WIDE, inner=COLS, bias=FLAG, residual=FLAG, **DY), matmul, (4e-5, 2), 2e-3),
    "norm": VjpCase(shapes(**WIDE, **DY), norm, (2e-5, 8)),
    "act": VjpCase(shapes(**MATRIX, act=ACTS.filter(bool), **DY), act, (4e-6, 8)),
    "add": VjpCase(shapes(**MATRIX, **DY), add, (0.0, 1)),
    "dropout": VjpCase(shapes(**MATRIX, **RATES, **PART, **DY), dropout, (0.0, 4)),
    "embed": VjpCase(shapes(**BATCH, **SPARE, cols=COLS, vocab=VOCAB, **DY), embed, (1e-5, 2)),
    "split_qkv": VjpCase(shapes(**HEADS, **DY), split_qkv, (0.0, 1)),
    "scores": VjpCase(shapes(**HEADS, **DY), scores, (1e-5, 2)),
    "softmax": VjpCase(shapes(**HEADS, **DY), softmax, (2e-6, 16)),
    "attend": VjpCase(shapes(**HEADS, **DY), attend, (1e-5, 2)),
    "cross_entropy": VjpCase(shapes(rows=ROWS, vocab=VOCAB, **DY), cross_entropy, (1e-6, 8)),
    "recomputed": VjpCase(shapes(**WIDE, inner=COLS, **PART, **DY), recomputed, (2e-3, 16), 0.1),
}
