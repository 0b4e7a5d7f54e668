"""Defines cases of the ops that sample a token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from helpers import reference as ref
from hypothesis import strategies as st

from cases.case import Case, Want
from cases.draws import shapes
from glgpt import ops
from glgpt.program.layout import Layout

if TYPE_CHECKING:
    from helpers.op_bench import Bench


def argmax(b: Bench, s: SimpleNamespace) -> list[Want]:
    layout = Layout(1, s.vocab, (1, s.tiles))
    x = b.given("x", b.rng.integers(-9, 9, (1, s.vocab)), layout)  # integers, many of them equal
    token, best = b.fixed("token", Layout(1, 4), "state"), ref.argmax(b.held["x"])
    ops.argmax(b, x, token)
    return [Want(token, np.array([[best, b.held["x"][0, best], 0, 0]]))]


def sample(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records draws with one possible result: top-k is 1, and top-p is 1e-6. `test_sample.py` tests other draws."""
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


def mask_logits(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.given("x", b.rng.integers(-9, 9, (1, s.vocab)), Layout(1, s.vocab, (1, s.tiles)))
    allowed = b.rng.integers(0, 2, s.vocab)
    bits = np.zeros(-(-s.vocab // (4 * ops.MASK_BITS)) * 4 * ops.MASK_BITS)
    bits[: s.vocab] = allowed
    numbers = bits.reshape(-1, ops.MASK_BITS) @ 2.0 ** np.arange(ops.MASK_BITS)
    y = ops.mask_logits(b, x, b.given("allowed", numbers[None], Layout(1, numbers.size)))
    return [Want(y, np.where(allowed, b.held["x"], np.float32(-3.3e38)))]


CASES = {
    "mask_logits": Case(shapes(vocab=st.integers(1, 200), tiles=st.integers(1, 2)), mask_logits, (0.0, 0)),
    "sample": Case(shapes(vocab=st.integers(1, 64), tiles=st.integers(1, 2)), sample, (0.0, 8)),
    "argmax": Case(shapes(vocab=st.integers(1, 64), tiles=st.integers(1, 2)), argmax, (0.0, 0)),
}
