"""Rotary position embedding (Su et al. 2021): queries and keys rotated by angles that grow with the position."""

from __future__ import annotations

from collections.abc import Sequence

from glgpt.ops.matmul import norm_inputs
from glgpt.ops.partial_sums import Normed, PartialSums
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
    batch: int = 1,
    normed: Normed | None = None,
) -> None:
    """Writes rows pos.. of `out` `[.., heads * d]` from x `[T, heads * d]`, each head rotated by its position's angles.

    Columns i and i + d_head / 2 of a head are a pair, rotated by (pos + t) * frequencies[i] in radians. Without
    frequencies the rows are copied. Partial sums of one row come with `normed`, and are finished here as in `combine`.
    Where `out` is scratch, it holds the rows of x, t * batch + sequence, from position 0.
    """
    inputs, defines = norm_inputs(normed)
    if isinstance(x, PartialSums):
        inputs, defines, rows = x.inputs | inputs, x.defines | defines, 1
    else:
        inputs, rows = {"x": x}, x.rows
    defines |= {"BATCH": batch, **_turn(d_head, frequencies)}
    if out.role == "state":
        rec.emit("rotary", inputs, {"y": out}, defines, label=label, window=Window((out.layout.width, rows), "pos"))
        return
    rec.emit("rotary", inputs, {"y": out}, defines | {"FROM_ZERO": 1}, label=label)

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        dx = rec.scratch(f"d.{label}", inputs["x"].layout)
        back = {"BATCH": batch, "FROM_ZERO": 1, **_turn(d_head, [-f for f in frequencies])}
        rec.emit("rotary", {"x": d[0]}, {"y": dx}, back)
        return [plus(rec, dx, sums[0])]

    rec.differentiable(out, (inputs["x"],), vjp)


def _turn(d_head: int, frequencies: Sequence[float]) -> dict[str, int | str]:
    defines: dict[str, int | str] = {"D_HEAD": d_head}
    if frequencies:
        defines["FREQUENCIES"] = ", ".join(f"{f:.9e}" for f in frequencies)
    return defines
