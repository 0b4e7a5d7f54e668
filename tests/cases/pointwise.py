"""Cases of ops that work value by value or row by row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from helpers import reference as ref
from helpers import reference_training as more
from helpers.reference_llama import silu
from hypothesis import strategies as st

from cases.case import Case, Taped, VjpCase, Want, tall
from cases.draws import ACTS, DY, FEW, FLAG, MATRIX, PART, RATES, ROWS, SPARE, shapes
from glgpt import ops
from glgpt.ops.pointwise import column_sums as recorded_column_sums
from glgpt.program.layout import Layout, fold, one_layer, texels

if TYPE_CHECKING:
    from helpers.op_bench import Bench


def act(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.given("x", 4 * b.rng.standard_normal((s.rows, s.cols)), b.many(s.rows, s.cols))
    y = ops.act(b, x, s.act, b.stream(s.rows, s.cols), "y")
    return [Want(y, ref.act(b.held["x"], s.act))]


def add(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))
    y = ops.add(b, x, b.normal("z", s.rows, s.cols, b.many(s.rows, s.cols)), x.layout, "y")
    return [Want(y, b.held["x"] + b.held["z"])]


def multiply(b: Bench, s: SimpleNamespace) -> list[Want]:
    x = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))
    y = ops.multiply(b, x, b.normal("z", s.rows, s.cols, b.many(s.rows, s.cols)), b.many(s.rows, s.cols), "y")
    return [Want(y, b.held["x"] * b.held["z"])]


def edit(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records edits in which each position and head has its own row of gain and shift, or is unchanged (row 0)."""
    positions = s.pos + s.rows + s.spare
    x = b.normal("x", s.rows * s.per, s.cols, b.stream(s.rows * s.per, s.cols))
    gain, shift = (b.normal(name, 3, s.cols) for name in ("gain", "shift"))
    limit = b.limits.max_texture_size
    which = b.given("which", b.rng.integers(0, 3, (positions, s.per)), fold(positions, s.per, limit))
    b.pos, b.row, held = s.pos, s.spare, b.held
    rows = held["which"].astype(int)
    wants = [Want(ops.edit(b, x, gain, shift, which), ref.edit(held["x"], held, rows[s.pos : s.pos + s.rows].ravel()))]
    scores = b.rng.standard_normal((s.rows * s.per, s.cols))
    scores[b.rng.random(scores.shape) < 0.5] = ref.MASKED
    y = ops.edit(b, b.given("scores", scores), gain, shift, which, scores=True)
    edited = ref.edit(held["scores"], held, rows[s.pos : s.pos + s.rows].ravel())
    wants.append(Want(y, np.where(scores == ref.MASKED, held["scores"], edited)))
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
    """Records an edit with a separate gain and shift at one position, which may be outside the rows."""
    x = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))
    gain, shift = (b.normal(name, 2, s.cols) for name in ("gain", "shift"))
    at = b.given("at", np.array([[s.at, 7, 7, 7]]), Layout(1, 4))
    b.pos = s.pos
    one = (np.arange(s.rows) + s.pos == s.at).astype(int)
    held = b.held
    return [Want(ops.edit_one(b, x, gain, shift, at), held["x"] * held["gain"][one] + held["shift"][one])]


def take_row(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a copy of a middle row of a tensor to a wider state with other tiles."""
    tall(b)
    b.row = 4
    x, out = b.normal("x", 7, s.inner, Layout(7, s.inner, (1, 2))), Layout(1, s.inner + 9, (1, 3))
    state = b.normal("state", 1, out.cols, out, role="state")
    ops.take_row(b, x, state)
    return [Want(state, np.pad(b.held["x"][4:5], ((0, 0), (0, 9))))]


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
    x = b.normal("x", few, s.cols)
    y = b.normal("y", s.rows, s.cols, Layout(s.rows, s.cols, (1, s.tiles)), role="state")
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


def act_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    values = 4 * b.rng.standard_normal((s.rows, s.cols))
    values += np.copysign(1e-3, values)  # not near 0, where a finite difference is not relu's slope
    x = b.given("x", values, b.many(s.rows, s.cols))
    y = ops.act(b, x, s.act, b.many(s.rows, s.cols), "y")
    return Taped((y,), {"x": x}, lambda x: (ref.act(x, s.act),))


def add_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    layout = b.stream(s.rows, s.cols)
    given = {"a": b.normal("a", s.rows, s.cols, layout), "b": b.normal("b", s.rows, s.cols, b.many(s.rows, s.cols))}
    return Taped((ops.add(b, *given.values(), layout, "y"),), given, lambda a, b: (a + b,))


def multiply_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    layout = b.many(s.rows, s.cols)
    given = {"a": b.normal("a", s.rows, s.cols, layout), "b": b.normal("b", s.rows, s.cols, layout)}
    return Taped((ops.multiply(b, *given.values(), layout, "y"),), given, lambda a, b: (a * b,))


def silu_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    x = b.given("x", 4 * b.rng.standard_normal((s.rows, s.cols)), b.many(s.rows, s.cols))
    y = ops.act(b, x, "silu", b.stream(s.rows, s.cols), "y")
    return Taped((y,), {"x": x}, lambda x: (silu(x),))


def dropout_vjp(b: Bench, s: SimpleNamespace) -> Taped:
    x = b.normal("x", s.rows, s.cols, b.stream(s.rows, s.cols))
    b.row, b.more = s.row, {"seed": s.seed, "step": 7}
    kept = more.kept(s.rows, s.cols, s.rate, 3, s.seed, 7, s.row)
    return Taped((ops.dropout(b, x, s.rate, 3, "y"),), {"x": x}, lambda x: (x * kept,))


CASES = {
    "act": Case(shapes(**MATRIX, act=ACTS.filter(bool)), act, (2e-6, 8)),
    "add": Case(shapes(**MATRIX), add, (0.0, 1)),
    "multiply": Case(shapes(**MATRIX), multiply, (0.0, 1)),
    "edit": Case(
        shapes(**MATRIX, per=st.integers(1, 6), pos=st.integers(0, 5), spare=st.integers(0, 2)),
        edit,
        (1e-6, 8),
    ),
    "edit_one": Case(shapes(**MATRIX, pos=st.integers(0, 5), at=st.integers(-1, 20)), edit_one, (1e-6, 8)),
    "take_row": Case(shapes(**FEW), take_row, (0.0, 0)),
}


TRAINING = {
    "transpose": Case(shapes(rows=ROWS, cols=st.sampled_from([100, 37, 6, 1])), transpose, (0.0, 0)),
    "copy": Case(shapes(**MATRIX, **SPARE, tiles=st.integers(1, 2)), copy, (0.0, 0)),
    "place_rows": Case(shapes(**MATRIX, **PART, tiles=st.integers(1, 3)), place_rows, (0.0, 0)),
    "column_sums": Case(shapes(**MATRIX, shift=FLAG), column_sums, (4e-6, 2)),
    "dropout": Case(shapes(**MATRIX, **RATES, **PART), dropout, (0.0, 3)),
}


VJPS = {
    "act": VjpCase(shapes(**MATRIX, act=ACTS.filter(bool), **DY), act_vjp, (4e-6, 8)),
    "add": VjpCase(shapes(**MATRIX, **DY), add_vjp, (0.0, 1)),
    "multiply": VjpCase(shapes(**MATRIX, **DY), multiply_vjp, (0.0, 4)),
    "silu": VjpCase(shapes(**MATRIX, **DY), silu_vjp, (4e-6, 8)),
    "dropout": VjpCase(shapes(**MATRIX, **RATES, **PART, **DY), dropout_vjp, (0.0, 4)),
}
