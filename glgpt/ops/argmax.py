"""The column of a row's greatest value."""

from __future__ import annotations

from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor

HIGH = 8  # rows of blocks of a row


def argmax(rec: Recorder, x: Tensor, out: Tensor) -> None:
    """Writes texel (column, value, 1 if x is not finite, 0) of the state `out` for x `[1, N]`, and zeros behind it.

    The first of equals wins. Of several rows, `out` has a row for each.
    """
    c4 = -(-x.cols // 4)
    best = rec.scratch("argmax.blocks", Layout(HIGH * x.rows, 4 * max(1, min(32, c4 // 128))))
    rec.emit("argmax", {"x": x}, {"y": best}, {"C4": c4, "BLOCKS": HIGH * best.layout.width, "HIGH": HIGH})
    rec.emit("argmax_final", {"x": best}, {"y": out}, {"HIGH": HIGH}, label="argmax")
