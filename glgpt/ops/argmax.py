"""The column of a row's greatest value."""

from __future__ import annotations

from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor


def argmax(rec: Recorder, x: Tensor, out: Tensor) -> None:
    """Writes texel (column, value, 1 if x is not finite, 0) of the state `out` for x `[1, N]`, and zeros behind it.

    The first of equals wins.
    """
    c4 = -(-x.cols // 4)
    best = rec.scratch("argmax.blocks", Layout(8, 4 * max(1, min(64, c4 // 128))))
    rec.emit("argmax", {"x": x}, {"y": best}, {"C4": c4, "BLOCKS": 8 * best.layout.width})
    rec.emit("argmax_final", {"x": best}, {"y": out}, label="argmax")
