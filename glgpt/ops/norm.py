"""Layer normalisation (Ba, Kiros and Hinton 2016): y = (x - mean) / sqrt(variance + eps) * gain + bias, by row."""

from __future__ import annotations

from glgpt.record import Recorder, Tensor
from glgpt.tensor import Layout

PARTS = 8  # a row's moments are taken by this many fragments, so that few rows still fill a GPU


def norm(rec: Recorder, x: Tensor, gain: Tensor, bias: Tensor, eps: float, out: Layout, name: str) -> Tensor:
    """The norm of every row of x `[T, C]`; gain and bias are `[1, C]`."""
    c4 = -(-x.cols // 4)
    part = -(-c4 // PARTS)
    stats = rec.scratch(f"{name}.stats", Layout(x.rows, 4 * -(-c4 // part)))
    rec.emit("norm_stats", {"x": x}, {"y": stats}, {"PART": part, "C4": c4})
    y = rec.scratch(name, out)
    rec.emit("norm", {"x": x, "stats": stats, "gain": gain, "bias": bias}, {"y": y}, {"EPSILON": eps})
    return y


def row_norm(
    rec: Recorder,
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    eps: float,
    name: str,
    *,
    row: str | int = 0,
    parts: tuple[Tensor, Tensor] | None = None,
    sum_name: str = "",
) -> tuple[Tensor, Tensor]:
    """One row `[1, C]`: returns (x, its norm).

    `row` picks the row of x (a number, or the scalar that holds it). `parts` = (partial sums `[S, C]` of a split
    product, its bias `[1, C]`): then x is first added to them, under `sum_name`, in the same pass.
    """
    c4 = -(-x.cols // 4)
    defines: dict[str, int | float | str] = {"C4": c4, "EPSILON": eps, "ROW": row}
    tiles = (1, 4 if parts else 8) if c4 >= 64 else (1, 1)
    y = rec.scratch(name, Layout(1, x.cols, tiles))
    inputs = {"x": x, "gain": gain, "bias": bias}
    if parts is None:
        rec.emit("row_norm", inputs, {"y": y}, defines)
        return x, y
    total = rec.scratch(sum_name, Layout(1, x.cols, tiles))
    part, shift = parts
    rec.emit(
        "row_norm", inputs | {"part": part, "shift": shift}, {"y": y, "sum": total}, defines | {"PARTS": part.rows}
    )
    return total, y
