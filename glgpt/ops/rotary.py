"""Rotary position embedding (Su et al. 2021): rotates queries and keys by angles that grow with the position."""

from __future__ import annotations

from collections.abc import Sequence

from glgpt.ops.matmul import norm_inputs
from glgpt.ops.partial_sums import EACH_NEW_ROW, Normed, PartialSums, Rows
from glgpt.ops.pointwise import plus
from glgpt.program.recorder import Recorder, Window
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor


def rotary(
    rec: Recorder,
    x: Tensor | PartialSums,
    out: Tensor,
    d_head: int,
    frequencies: Sequence[float],
    label: str,
    batch: int | Rows = 1,
    normed: Normed | None = None,
) -> None:
    """Writes x `[T, heads * d]`, each head rotated by the angles of its position, to rows `pos`.. of `out`.

    `out` is `[.., heads * d]`. Columns i and i + d_head / 2 of a head are a pair, which is rotated by
    (pos + t) * frequencies[i] radians. Without frequencies, the rows are copied. If x is the partial sums of one row,
    `normed` is given with it, and the sums are finished here as in `combine`. With `Rows` instead of a batch size, the
    rows are written from row `row` on, each rotated by its own position. If `out` is scratch, it has the rows of x,
    t * batch + sequence, from position 0.
    """
    batch, rows = (1, batch) if isinstance(batch, Rows) else (batch, None)
    inputs, defines = norm_inputs(normed)
    if isinstance(x, PartialSums):
        inputs, defines = x.inputs | inputs, x.defines | defines
    else:
        inputs = {"x": x}
    defines |= {"BATCH": batch, **_rotation_defines(d_head, frequencies)}
    if rows:
        inputs, defines = inputs | {"places": rows.places}, defines | EACH_NEW_ROW
    if out.role == "state":
        window = Window((out.layout.width, x.rows), "row" if rows else "pos")
        rec.emit("rotary", inputs, {"y": out}, defines, label=label, window=window)
        return
    rec.emit("rotary", inputs, {"y": out}, defines | {"FROM_ZERO": 1}, label=label)

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        dx = rec.scratch(f"d.{label}", inputs["x"].layout)
        back = {"BATCH": batch, "FROM_ZERO": 1, **_rotation_defines(d_head, [-f for f in frequencies])}
        rec.emit("rotary", {"x": d[0]}, {"y": dx}, back)
        return [plus(rec, dx, sums[0])]

    rec.differentiable(out, (inputs["x"],), vjp)


def _rotation_defines(d_head: int, frequencies: Sequence[float]) -> dict[str, int | str]:
    defines: dict[str, int | str] = {"D_HEAD": d_head}
    if frequencies:
        defines["FREQUENCIES"] = ", ".join(f"{f:.9e}" for f in frequencies)
    return defines
