"""Cases of losses and predictions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from helpers import reference_training as more

from cases.case import Case, Taped, VjpCase, Want
from cases.draws import DY, ROWS, VOCAB, shapes
from glgpt import ops
from glgpt.program.layout import Layout, fold
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from helpers.op_bench import Bench


def targets(b: Bench, s: SimpleNamespace) -> Tensor:
    """Returns a target for each row. About one in four is negative (no target); that of the last row is the last id."""
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
    """Records predictions from integer logits, so that some are equal."""
    layout = logits(b, s).layout
    x = b.given("coarse", np.round(2 * b.rng.standard_normal((s.rows, s.vocab))), layout)
    y = ops.prediction(b, x, targets(b, s))
    return [Want(y, more.prediction(b.held["coarse"], b.held["targets"][:, 0].astype(int)))]


def cross_entropy_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    """Records the start of the backward pass: the gradient of the scaled loss.

    This gradient does not depend on the gradient that the test gives for the loss.
    """
    x, ids = logits(b, s), targets(b, s)
    wanted, dtype = b.held["targets"][:, 0].astype(int), b.style.dtype
    scale = None if dtype == "f32" else b.given("loss_scale", np.array([[4.0, 0, 0, 0]]), role="input")
    y, times = ops.cross_entropy(b, x, ids, 0.3, loss_scale=scale, dtype=dtype), 1.2 if scale else 0.3
    return Taped((y,), {"x": x}, lambda x: (np.array([[times * more.cross_entropy(x, wanted), 0, 0, 0]]),))


TRAINING = {
    "cross_entropy_rows": Case(shapes(rows=ROWS, vocab=VOCAB), cross_entropy_rows, (4e-5, 4)),
    "cross_entropy": Case(shapes(rows=ROWS, vocab=VOCAB), cross_entropy, (4e-5, 4)),
    "prediction": Case(shapes(rows=ROWS, vocab=VOCAB), prediction, (4e-6, 8)),
}


VJPS = {
    "cross_entropy": VjpCase(shapes(rows=ROWS, vocab=VOCAB, **DY), cross_entropy_vjp, (1e-6, 8)),
}
