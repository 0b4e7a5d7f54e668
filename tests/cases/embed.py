"""Cases of embeddings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from helpers import reference as ref
from helpers import reference_training as more
from hypothesis import strategies as st

from cases.case import Case, Taped, VjpCase, Want, rows_at, tall
from cases.draws import BATCH, COLS, DY, FEW, MATRIX, SPARE, VOCAB, shapes
from glgpt import ops
from glgpt.program.layout import Layout

if TYPE_CHECKING:
    from helpers.op_bench import Bench


def embed(b: Bench, s: SimpleNamespace) -> list[Want]:
    ids = b.given("ids", b.rng.integers(0, s.vocab, (s.rows, 1)), role="input")
    wte, wpe = b.weight("wte", s.cols, s.vocab), b.normal("wpe", s.pos + s.rows, s.cols)
    b.pos, a = s.pos, b.held
    y = ops.embed(b, ids, wte, wpe, b.stream(s.rows, s.cols))
    return [Want(y, ref.embed(a["ids"][:, 0].astype(int), a["wte"][: s.cols], a["wpe"], s.pos))]


def embed_tokens(b: Bench, s: SimpleNamespace) -> list[Want]:
    ids = b.given("ids", b.rng.integers(0, s.vocab, (s.rows, 1)), role="input")
    y = ops.embed(b, ids, b.weight("wte", s.cols, s.vocab), None, b.stream(s.rows, s.cols))
    return [Want(y, b.held["wte"][: s.cols, b.held["ids"][:, 0].astype(int)].T)]


def embed_rows(b: Bench, s: SimpleNamespace) -> list[Want]:
    tall(b)
    rows, places, _ = rows_at(b, s, 7, 7)
    ids = b.given("ids", b.rng.integers(0, s.vocab, (s.texts, 1)), role="input")
    wte, wpe = b.weight("wte", s.inner, s.vocab), b.normal("wpe", 7, s.inner)
    y, a = ops.embed(b, ids, wte, wpe, Layout(s.texts, s.inner), batch=rows), b.held
    return [Want(y, a["wte"][: s.inner, a["ids"][:, 0].astype(int)].T + a["wpe"][places])]


def embed_batch(b: Bench, s: SimpleNamespace) -> list[Want]:
    ids = b.given("ids", b.rng.integers(0, s.vocab, (s.rows * s.batch, 1)), role="input")
    wte, wpe, a = b.weight("wte", s.cols, s.vocab), b.normal("wpe", s.rows + s.spare, s.cols), b.held
    y = ops.embed(b, ids, wte, wpe, b.stream(s.rows * s.batch, s.cols), batch=s.batch)
    return [Want(y, more.embed(a["ids"][:, 0].astype(int), a["wte"][: s.cols], a["wpe"], s.batch))]


def embed_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    rows, limit = s.rows * s.batch, b.limits.max_texture_size
    values = b.rng.integers(0, s.vocab, rows)  # some ids occur several times, others never
    values[-1] = s.vocab - 1
    ids = b.given("ids", values[:, None], role="input")
    pairs = zip(
        ("order", "starts"), ops.sorted_index(values, s.vocab), ops.index_layouts(rows, s.vocab, limit), strict=True
    )
    order, starts = (b.given(name, matrix, layout, "input") for name, matrix, layout in pairs)
    given = {"wte": b.weight("wte", s.cols, s.vocab), "wpe": b.normal("wpe", s.rows + s.spare, s.cols)}
    y = ops.embed(b, ids, *given.values(), b.stream(rows, s.cols), batch=s.batch, index=(order, starts))
    return Taped((y,), given, lambda wte, wpe: (more.embed(values, wte[: s.cols], wpe, s.batch),), {"wte": s.cols})


CASES = {
    "embed": Case(shapes(**MATRIX, vocab=st.integers(1, 64), pos=st.integers(0, 3)), embed, (0.0, 1)),
    # Some formats subtract a minimum from a level times its scale; a GPU may do both in one instruction and round once.
    "embed_tokens": Case(shapes(**MATRIX, vocab=st.integers(1, 64)), embed_tokens, (2.0**-22, 1)),
    "embed_rows": Case(shapes(**FEW, vocab=st.integers(1, 64)), embed_rows, (0.0, 1)),
}


TRAINING = {
    "embed_batch": Case(shapes(**BATCH, **SPARE, cols=COLS, vocab=st.integers(1, 64)), embed_batch, (0.0, 1)),
}


VJPS = {
    "embed": VjpCase(shapes(**BATCH, **SPARE, cols=COLS, vocab=VOCAB, **DY), embed_vjp, (1e-5, 2)),
}
