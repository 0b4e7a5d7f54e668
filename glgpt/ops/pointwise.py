"""Elementwise ops (activations, sums, interventions, dropout), and ops that copy rows or change layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from glgpt.program.formats import FORMATS
from glgpt.program.layout import Layout, fold
from glgpt.program.recorder import Recorder, Window
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor

ACTIVATIONS = {None: 0, "gelu_new": 1, "gelu": 2, "relu": 3, "silu": 4, "relu2": 5}
MASKED = -1.0e30  # score of a masked key: finite, so that an infinity always means an overflow
SOFT_CAP = 6  # code of CAP * tanh(x / CAP) in `activation.glsl`

# Coefficients of ln(erfc(z) exp(z z) / t), with t = 1 / (1 + z/2), as a polynomial in s = 2t - 1, lowest power first:
# Chebyshev interpolation of degree 9 over 0 <= z <= 9.7, computed for this file. Its error is 5e-8 before the
# coefficients are rounded to float32.
ERFC = (
    -0.671794056892395,
    0.672642707824707,
    0.047341544181108475,
    -0.046882934868335724,
    -0.009852822870016098,
    0.008729903027415276,
    0.001695533748716116,
    -0.002050288487225771,
    -0.00011442708637332544,
    0.00028487504459917545,
)


Activate = str | float | None  # an activation's name, the cap of a soft cap, or None for the identity


def activation_defines(name: Activate) -> dict[str, int | float | str]:
    """Returns the defines of `activation.glsl` for an activation function."""
    if isinstance(name, float):
        return {"ACT": SOFT_CAP, "CAP": name}
    horner = f"{ERFC[-1]:.9g}"
    for c in reversed(ERFC[:-1]):
        horner = f"({horner} * (s) + {c:.9g})"
    code = ACTIVATIONS[name]
    return {"ACT": code, "ERFC(s)": horner} if name == "gelu" else {"ACT": code}


def act(rec: Recorder, x: Tensor, kind: Activate, out: Layout, name: str) -> Tensor:
    """Records y = kind(x) in the layout `out`. `kind` is one of `ACTIVATIONS`; a number c means c * tanh(x / c)."""
    y = rec.scratch(name, out)
    rec.emit("act", {"x": x}, {"y": y}, activation_defines(kind))

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        dx = rec.scratch(f"d.{x.name}", x.layout)
        rec.emit("act_vjp", {"x": x, "dy": d[0]}, {"y": dx}, activation_defines(kind))
        return [plus(rec, dx, sums[0])]

    rec.differentiable(y, (x,), vjp)
    return y


def add(rec: Recorder, a: Tensor, b: Tensor, out: Layout, name: str) -> Tensor:
    """Records y = a + b, in the layout `out`."""
    y = rec.scratch(name, out)
    rec.emit("add", {"a": a, "b": b}, {"y": y})
    rec.differentiable(y, (a, b), lambda d, sums: [plus(rec, d[0], s) for s in sums])
    return y


def multiply(rec: Recorder, a: Tensor, b: Tensor, out: Layout, name: str) -> Tensor:
    """Records y = a b, elementwise, in the layout `out`."""
    y = rec.scratch(name, out)
    rec.emit("multiply", {"a": a, "b": b}, {"y": y})

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        da, db = (rec.scratch(f"d.{x.name}", x.layout) for x in (a, b))
        rec.emit("multiply", {"a": d[0], "b": b}, {"y": da})
        rec.emit("multiply", {"a": d[0], "b": a}, {"y": db})
        return [plus(rec, da, sums[0]), plus(rec, db, sums[1])]

    rec.differentiable(y, (a, b), vjp)
    return y


def edit(
    rec: Recorder,
    x: Tensor,
    gain: Tensor,
    shift: Tensor,
    which: Tensor,
    out: Layout | None = None,
    only_row: str | None = None,
    scores: bool = False,
) -> Tensor:
    """Records an intervention: y = x gain + shift, with a row of `gain` and `shift` for each position and head.

    `which` `[positions, heads]` holds the numbers of these rows; at 0, y is x. x has a row for each head of each
    position from `pos` on; with `only_row`, x has only the rows of position pos + only_row. If x is a state, it has a
    row for each position of the context, and y, in the layout `out`, gets the rows from `pos` on. With `scores`, x
    holds attention scores; masked scores stay masked. The op is not differentiable. Raises ValueError if gain or shift
    does not have the columns of x.
    """
    if gain.cols != x.cols or shift.cols != x.cols:
        raise ValueError(f"gain and shift have {gain.cols} and {shift.cols} columns, {x.name} has {x.cols}")
    y = rec.scratch(x.name, out or x.layout)
    defines: dict[str, int | float | str] = {"PER": which.cols}
    defines |= {"ALL_POSITIONS": 1} if x.role == "state" else {}
    defines |= {"ONLY_ROW": only_row} if only_row else {}
    defines |= {"MASKED": MASKED} if scores else {}
    rec.emit("edit", {"x": x, "gain": gain, "shift": shift, "which": which}, {"y": y}, defines, label=f"{x.name}.edit")
    return y


def edit_one(rec: Recorder, x: Tensor, gain: Tensor, shift: Tensor, at: Tensor) -> Tensor:
    """Records y = x gain + shift, with row 1 of gain and shift at one position, and row 0 at all other positions.

    Gain and shift are `[2, columns]`. `at` is a texel with the position; if it is -1, row 0 is used everywhere. The op
    is not differentiable. Raises ValueError if gain or shift has another shape.
    """
    if gain.cols != x.cols or shift.cols != x.cols or gain.rows != 2 or shift.rows != 2:
        raise ValueError(f"gain and shift must be [2, {x.cols}] for {x.name}")
    y = rec.scratch(x.name, x.layout)
    rec.emit("edit_one", {"x": x, "gain": gain, "shift": shift, "at": at}, {"y": y}, label=f"{x.name}.edit")
    return y


def dropout(rec: Recorder, x: Tensor, rate: float, site: int, name: str) -> Tensor:
    """Records dropout (Srivastava et al. 2014): zeroes a fraction `rate` of the values and scales up the others.

    Which values become zero depends on a hash of the scalars `seed`, `step` and `row` (the micro-batch), of `site` (the
    number of this dropout in the model), and of the row and texel.
    """
    y = _dropped(rec, x, rate, site, name)
    rec.differentiable(y, (x,), lambda d, sums: [plus(rec, _dropped(rec, d[0], rate, site, f"d.{x.name}"), sums[0])])
    return y


def _dropped(rec: Recorder, x: Tensor, rate: float, site: int, name: str) -> Tensor:
    y = rec.scratch(name, x.layout)
    rec.emit("dropout", {"x": x}, {"y": y}, {"RATE": rate, "SITE": site})
    return y


def plus(rec: Recorder, gradient: Tensor, so_far: Tensor | None) -> Tensor:
    """Records gradient + so_far and returns the sum; returns `gradient` itself if `so_far` is None."""
    return add(rec, gradient, so_far, gradient.layout, gradient.name) if so_far else gradient


def copy(rec: Recorder, x: Tensor, out: Layout, name: str) -> Tensor:
    """Records a copy of x in the layout `out`, which may be larger; values beyond x are zero."""
    y = rec.scratch(name, out)
    rec.emit("copy", {"x": x}, {"y": y})
    return y


def packed(rec: Recorder, x: Tensor, dtype: str, tile_rows: int | None = None) -> Tensor:
    """Records a copy of x stored as `dtype`, in `tile_rows` row tiles (None: in the layout of a weight).

    Returns x itself if x is packed already, or if `dtype` is not a packed format (`Format.packed`).
    """
    layout = packed_layout(rec, x.layout, dtype, tile_rows)
    return x if layout == x.layout else copy(rec, x, layout, f"{x.name}.packed")


def packed_layout(rec: Recorder, x: Layout, dtype: str, tile_rows: int | None = None) -> Layout:
    """Returns the layout that `packed` gives a tensor of layout x."""
    if x.format.packed or not FORMATS[dtype].packed:
        return x
    limit = rec.limits.max_texture_size
    if tile_rows is None:
        return fold(x.rows, x.cols, limit, dtype=dtype)
    return Layout(x.rows, x.cols, (tile_rows, fold(1, x.cols, limit, dtype=dtype).tiles[1]), dtype)


def transpose(rec: Recorder, x: Tensor, out: Layout, name: str) -> Tensor:
    """Records the transpose of x in the layout `out`, which may be larger; values beyond x are zero."""
    y = rec.scratch(name, out)
    rec.emit("transpose", {"x": x}, {"y": y})
    return y


def slice_rows(rows: int) -> int:
    """Returns how many of `rows` rows a fragment adds up; a second pass then adds up the fragments' sums."""
    return max(1, round(math.sqrt(rows)))


def column_sums(rec: Recorder, x: Tensor, name: str, so_far: Tensor | None = None) -> Tensor:
    """Records the sum of all rows of x `[M, N]`, plus `so_far`: `[1, N]`, in two passes that keep a GPU busy."""
    rows = slice_rows(x.rows)
    slices = rec.scratch(f"{name}.slices", Layout(-(-x.rows // rows), x.cols))
    rec.emit("column_sums", {"x": x}, {"y": slices}, {"ROWS": rows})
    return add_slices(rec, slices, name, so_far)


def place_rows(rec: Recorder, x: Tensor, out: Tensor, first: str) -> None:
    """Writes x `[rows, N]` to the state `out` `[.., N]`; the scalar named `first` holds the first row to write."""
    window = Window((out.layout.width, x.rows), first)
    rec.emit("place_rows", {"x": x}, {"y": out}, {"FIRST": first}, window=window)


def take_row(rec: Recorder, x: Tensor, out: Tensor) -> None:
    """Writes one row of x `[.., N]` to `out` `[1, ..]`; columns beyond N are zero.

    The scalar `row` is the number of the row.
    """
    rec.emit("take_row", {"x": x}, {"y": out})


def add_slices(rec: Recorder, slices: Tensor, name: str, so_far: Tensor | None = None) -> Tensor:
    """Records the sum of the rows of `slices`, plus `so_far`. A fragment adds up four whole columns."""
    y = rec.scratch(name, Layout(1, slices.cols))
    inputs = {"x": slices} | ({"plus": so_far} if so_far else {})
    rec.emit("column_sums", inputs, {"y": y}, {"ROWS": slices.rows})
    return y
