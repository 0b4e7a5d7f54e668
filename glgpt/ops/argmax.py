"""Argmax: the column of the greatest value of a row."""

from __future__ import annotations

from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor

HIGH = 8  # each row of x is reduced to this many rows of blocks first


def argmax(rec: Recorder, x: Tensor, out: Tensor) -> None:
    """Writes the texel (column, value, 1 if x is not finite, 0) for x `[1, N]` to the state `out`, followed by zeros.

    If several values are equal, the first one wins. If x has several rows, `out` has a row for each.
    """
    c4 = -(-x.cols // 4)
    best = rec.scratch("argmax.blocks", Layout(HIGH * x.rows, 4 * max(1, min(32, c4 // 128))))
    rec.emit("argmax", {"x": x}, {"y": best}, {"C4": c4, "BLOCKS": HIGH * best.layout.width, "HIGH": HIGH})
    rec.emit("argmax_final", {"x": best}, {"y": out}, {"HIGH": HIGH}, label="argmax")
