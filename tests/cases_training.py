"""More rows of `cases`: the forward ops that only training uses."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from cases import COLS, FLAG, MATRIX, ROWS, VOCAB, Array, Case, Want, shapes
from helpers import reference_training as more
from hypothesis import strategies as st

from glgpt import ops
from glgpt.ops.pointwise import column_sums as recorded_column_sums
from glgpt.program.formats import FORMATS
from glgpt.program.layout import Layout, fold, texels
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from test_ops import Bench


def transpose(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.normal("x", s.rows, s.cols, b.many(s.rows, s.cols))
    y = ops.transpose(b, x, fold(texels(s.cols), s.rows, b.limits.max_texture_size), "y")
    return [Want(y, np.pad(b.held["x"].T, ((0, -s.cols % 4), (0, 0))))]


def copy(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.normal("x", s.rows, s.cols, b.many(s.rows, s.cols))
    y = ops.copy(b, x, fold(s.rows + s.spare, s.cols, b.limits.max_texture_size, s.tiles), "y")
    return [Want(y, np.pad(b.held["x"], ((0, s.spare), (0, 0))))]


def place_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    few = 1 + s.rows // 3
    x, y = b.normal("x", few, s.cols), b.normal("y", s.rows, s.cols, role="state")
    b.row, after = s.row % (s.rows - few + 1), b.held["y"].copy()
    after[b.row : b.row + few] = b.held["x"]
    ops.place_rows(b, x, y, "row")
    return [Want(y, after)]


def column_sums(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.normal("x", s.rows, s.cols, b.many(s.rows, s.cols))
    y = recorded_column_sums(b, x, "y", b.normal("so_far", 1, s.cols) if s.shift else None)
    return [Want(y, b.held["x"].sum(axis=0, keepdims=True) + b.held.get("so_far", 0))]


def dropout(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))
    b.row, b.more = s.row, {"seed": s.seed, "step": 7}
    y = ops.dropout(b, x, s.rate, 3, "y")
    return [Want(y, b.held["x"] * more.kept(s.rows, s.cols, s.rate, 3, s.seed, 7, s.row))]


def embed_batch(b: Bench, s: SimpleNamespace) -> list[Want]:
    ids = b.given("ids", b.rng.integers(0, s.vocab, (s.rows * s.batch, 1)), role="input")
    wte, wpe, a = b.weight("wte", s.cols, s.vocab), b.normal("wpe", s.rows + s.spare, s.cols), b.held
    y = ops.embed(b, ids, wte, wpe, b.stream(s.rows * s.batch, s.cols), batch=s.batch)
    return [Want(y, more.embed(a["ids"][:, 0].astype(int), a["wte"][: s.cols], a["wpe"], s.batch))]


def unfolded(b: Bench) -> None:
    """Raises a style's limit for tensors that are not folded; it stays far below a device's."""
    b.limits = replace(b.limits, max_texture_size=256)


def scores_batch(b: Bench, s: SimpleNamespace) -> list[Want]:
    q, k = heads(b, s, "q"), heads(b, s, "k")
    y = ops.scores(b, q, k, s.rows, score_tiles(b, s), s.n_head, 0.4, "y", s.batch)
    wanted = more.scores(b.held["q"], b.held["k"], s.n_head, 0.4, s.batch)
    return [Want(y, wanted, lambda m: m[: len(wanted)], bare=True)]


def heads(b: Bench, s: SimpleNamespace, name: str) -> Tensor:
    """Returns queries, keys or values of all sequences."""
    rows, cols = s.rows * s.batch, 4 * s.d4 * s.n_head
    return b.normal(name, rows, cols, b.heads(rows, cols))


def score_tiles(b: Bench, s: SimpleNamespace) -> int:
    """Returns the row tiles of scores; with a batch they must divide the rows."""
    unfolded(b)
    return int(np.gcd(s.rows, b.style.tiles[0])) if s.batch > 1 else b.style.tiles[0]


def score_rows(b: Bench, s: SimpleNamespace, dtype: str = "f32") -> tuple[Layout, int]:
    """Returns the layout of scores from position 0, or of a pattern in that layout, and how many of its rows count."""
    tr, tc = score_tiles(b, s), FORMATS[dtype].column_tiles_per_texel
    return Layout(-(-s.rows // tr) * tr * s.n_head * s.batch, s.rows, (tr, tc), dtype), s.rows * s.batch * s.n_head


def reached(b: Bench, s: SimpleNamespace) -> Array:
    """Returns 1 if a row of scores may attend to the key, else 0: patterns and gradients of scores are zero there."""
    positions = np.arange(score_rows(b, s)[0].rows) // (s.n_head * s.batch)
    return (np.arange(s.rows) <= positions[:, None]).astype(float)


def attend_batch(b: Bench, s: SimpleNamespace) -> list[Want]:
    (layout, used), v = score_rows(b, s, b.style.dtype), heads(b, s, "v")
    x = b.given("x", b.rng.standard_normal((layout.rows, s.rows)) * reached(b, s), layout)
    z = ops.attend(b, x, v, s.rows, s.n_head, "z", "f32", s.batch, 0.7)
    return [Want(z, more.attend(b.held["x"][:used], b.held["v"], s.n_head, s.batch, 0.7))]


def targets(b: Bench, s: SimpleNamespace) -> Tensor:
    """Returns targets of `rows` rows: about one in four is negative, and the last id is one of them."""
    ids = np.where(b.rng.random((s.rows, 1)) < 0.25, -1, b.rng.integers(0, s.vocab, (s.rows, 1)))
    ids[-1] = s.vocab - 1
    return b.given("targets", ids, role="input")


def logits(b: Bench, s: SimpleNamespace) -> Tensor:
    """Returns logits in the layout of a product with the head."""
    tr, tc = b.style.tiles
    layout = Layout(s.rows, s.vocab, (tr, fold(1, s.vocab, b.limits.max_texture_size, tc).tiles[1]))
    return b.given("x", 4 * b.rng.standard_normal((s.rows, s.vocab)), layout)


def cross_entropy_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    y, a = ops.cross_entropy_rows(b, logits(b, s), targets(b, s), "losses"), b.held
    ids = a["targets"][:, 0].astype(int)
    each = [more.cross_entropy(a["x"][i : i + 1], ids[i : i + 1]) for i in range(len(ids))]
    wanted = np.stack([each, ids >= 0], axis=1).astype(float)
    return [Want(y, wanted, lambda m: m[:, :2])]


def cross_entropy(b: Bench, s: SimpleNamespace) -> list[Want]:
    y, a = ops.cross_entropy(b, logits(b, s), targets(b, s), 1.0), b.held
    ids = a["targets"][:, 0].astype(int)
    wanted = np.array([[more.cross_entropy(a["x"], ids), (ids >= 0).sum()]])
    return [Want(y, wanted, lambda m: m[:, :2], bare=True)]


def prediction(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Uses values of few magnitudes, so that some are equal."""
    layout = logits(b, s).layout
    x = b.given("coarse", np.round(2 * b.rng.standard_normal((s.rows, s.vocab))), layout)
    y = ops.prediction(b, x, targets(b, s))
    return [Want(y, more.prediction(b.held["coarse"], b.held["targets"][:, 0].astype(int)))]


def gradient_norm(b: Bench, s: SimpleNamespace) -> list[Want]:
    unfolded(b)
    sizes = [(s.rows, s.cols), (1, s.cols), (s.rows, 1)] * 6
    given = [b.normal(f"g{i}", *size, b.many(*size)) for i, size in enumerate(sizes[: s.tensors])]
    losses = b.given("losses", np.outer(s.counted, [0, 1, 0, 0]), role="state")
    mean = 9 / max(1, sum(s.counted[:3]))  # of nine rows in three parts
    held = [mean * array for name, array in b.held.items() if name != "losses"]
    norm, factor = more.gradient_norm(held, s.clip)
    y = ops.gradient_norm(b, given, s.clip, losses, 3, 9)
    return [Want(y, np.array([[norm, mean * factor, 1.0, 0.0]]))]


def gradient_norm_scaled(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Gradients 1,024 times as large; none counts as finite after an overflow or with one."""
    unfolded(b)
    given = [b.normal(f"g{i}", s.rows, s.cols, b.many(s.rows, s.cols)) for i in range(2)]
    held = [b.held[f"g{i}"] / 1024 for i in range(2)]
    norm, factor = more.gradient_norm(held, s.clip)
    losses = b.given("losses", np.array([[0.0, s.rows, 0, 0]]), role="state")
    scale = b.given("loss_scale", np.array([[1024.0, 0, 0, 0]]), role="input")
    before = b.given("overflowed", np.array([[float(s.shift), 0, 0, 0]]), role="state")
    pair = before, b.fixed("overflowed.next", before.layout, "state")
    y = ops.gradient_norm(b, given, s.clip, losses, 1, s.rows, ops.LossScale(scale, pair))
    wanted = np.array([[norm, factor / 1024, float(not s.shift), 0.0]])
    return [Want(y, wanted), Want(before, np.array([[float(s.shift), 0, 0, 0]]))]


def pattern(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a softmax stored in the format that a product of its style reads."""
    layout, used = score_rows(b, s)
    x, share = b.given("x", 3 * b.rng.standard_normal((layout.rows, s.rows)), layout), s.n_head * s.batch
    y = ops.softmax(b, x, share, "y", b.style.dtype)
    return [Want(y, more.softmax(b.held["x"][:used], share), lambda m: m[:used])]


def adamw(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a step of a parameter with padded rows and its moments; the new states take the old ones' names."""
    rows, lr, step, betas, decay, eps = texels(s.rows), 1e-2, 5, (0.9, 0.99), 0.1 * s.shift, 1e-3
    layout = fold(rows, s.cols, b.limits.max_texture_size)

    def padded(values: Array) -> Array:
        return np.pad(values, ((0, rows - s.rows), (0, 0)))

    size = s.rows, s.cols
    x, m, squares = (
        b.given(n, padded(b.rng.standard_normal(size) ** p), layout, "state") for n, p in PARAMETER.items()
    )
    g = b.given("g", padded(b.rng.standard_normal(size)), Layout(rows, s.cols, (b.style.tiles[0], 1)))
    norm = b.given("norm", np.array([[2.0, 0.5, 1.0, 0.0]]))  # clipped by one half
    b.more = {"lr": lr, "unbias1": 1 / (1 - betas[0] ** step), "unbias2": 1 / (1 - betas[1] ** step)}
    pairs = [(t, b.fixed(f"{t.name}.next", layout, "state")) for t in (x, m, squares)]
    ops.adamw(b, *pairs, g, norm, betas, eps, decay)
    a = b.held
    after = more.adamw(a["x"], a["m"], a["s"], 0.5 * a["g"], lr, betas, eps, decay, step)
    return [Want(old, value) for (old, _), value in zip(pairs, after, strict=True)]


PARAMETER = {"x": 1, "m": 1, "s": 2}  # each holds this power of a normal value; squares are not negative


def normal(b: Bench, s: SimpleNamespace) -> list[Want]:
    """A parameter's first values: three of every five rows are in use, six of every eight columns."""
    layout = fold(texels(s.rows), s.cols, b.limits.max_texture_size)
    x, m, squares = (b.given(name, b.rng.standard_normal((layout.rows, s.cols)), layout, "state") for name in "xms")
    b.more = {"seed": s.seed}
    ops.normal(b, x, (m, squares), 0.5, s.rate, 3, (5, 3), (8, 6))
    rows, cols = np.arange(layout.rows)[:, None], np.arange(s.cols)
    wanted = more.normal(layout.rows, s.cols, 0.5, s.rate, 3, s.seed)
    none = np.zeros((layout.rows, s.cols))
    return [Want(x, np.where((rows % 5 < 3) & (cols % 8 < 6), wanted, 0)), Want(m, none), Want(squares, none)]


PARTS = {"counted": st.sampled_from([(3, 3, 3, 3), (0, 0, 0, 5), (2, 0, 3, 1)])}  # number of targets in each part
SPARE = {"spare": st.integers(0, 9)}
PART = {"row": st.integers(0, 28)}
CLIPS = st.sampled_from([1.0, 0.0, 1e3])
BATCH = {"rows": st.sampled_from([8, 1, 3, 12, 7]), "batch": st.sampled_from([2, 1, 3])}
HEADS = BATCH | {"n_head": st.integers(1, 3), "d4": st.integers(1, 3)}
RATES = {"rate": st.sampled_from([0.1, 0.5, 0.9]), "seed": st.sampled_from([2**31 - 1, 0, 3])}
TRAINING = {
    "transpose": Case(shapes(rows=ROWS, cols=st.sampled_from([100, 37, 6, 1])), transpose, (0.0, 0)),
    "copy": Case(shapes(**MATRIX, **SPARE, tiles=st.integers(1, 2)), copy, (0.0, 0)),
    "place_rows": Case(shapes(**MATRIX, **PART), place_rows, (0.0, 0)),
    "column_sums": Case(shapes(**MATRIX, shift=FLAG), column_sums, (4e-6, 2)),
    "dropout": Case(shapes(**MATRIX, **RATES, **PART), dropout, (0.0, 3)),
    "embed_batch": Case(shapes(**BATCH, **SPARE, cols=COLS, vocab=st.integers(1, 64)), embed_batch, (0.0, 1)),
    "scores_batch": Case(shapes(**HEADS), scores_batch, (4e-6, 2)),
    "attend_batch": Case(shapes(**HEADS), attend_batch, (1e-5, 2)),
    "cross_entropy_rows": Case(shapes(rows=ROWS, vocab=VOCAB), cross_entropy_rows, (4e-5, 4)),
    "cross_entropy": Case(shapes(rows=ROWS, vocab=VOCAB), cross_entropy, (4e-5, 4)),
    "prediction": Case(shapes(rows=ROWS, vocab=VOCAB), prediction, (4e-6, 8)),
    "gradient_norm": Case(
        shapes(**MATRIX, **PARTS, tensors=st.sampled_from([17, 1, 3]), clip=CLIPS),
        gradient_norm,
        (0.0, 16),
    ),
    "gradient_norm_scaled": Case(shapes(**MATRIX, clip=CLIPS, shift=FLAG), gradient_norm_scaled, (1e-12, 16)),
    "pattern": Case(shapes(**HEADS), pattern, (1e-6, 8)),
    "normal": Case(shapes(**MATRIX, **RATES), normal, (1e-5, 8)),
    "adamw": Case(shapes(**MATRIX, shift=FLAG), adamw, (1e-6, 8)),  # x and its step, both up to 4, may cancel
}
