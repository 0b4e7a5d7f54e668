"""Causal attention over caches of keys and values (Vaswani et al. 2017).

Heads lie side by side in a row, each padded to whole texels. Score rows are `t * n_head + head`, cut into far-apart
tiles of t, so that the fragments of one head share the keys they fetch. The runtime scalar `pos` is the position of
the first row.
"""

from __future__ import annotations

from glgpt.ops.matmul import norm_inputs
from glgpt.ops.norm import NormedRow, PartialSums
from glgpt.record import Recorder, Tensor
from glgpt.tensor import Layout

MASKED = -1.0e30  # finite, so that no shader meets an infinity it did not make


def split_qkv(
    rec: Recorder,
    x: Tensor | PartialSums,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    label: str,
    normed: tuple[NormedRow, tuple[Tensor, Tensor]] | None = None,
) -> None:
    """Writes rows pos.. of the states q, k, v `[n_positions, n_head * d]` from x `[T, 3 * n_head * d]`.

    Partial sums of one row come with `normed`, and are finished here as in `combine`.
    """
    inputs, defines = norm_inputs(normed)
    if isinstance(x, PartialSums):
        inputs, defines, rows = x.inputs | inputs, x.defines | defines, 1
    else:
        inputs, rows = {"x": x}, x.rows
    outputs = {"q": q, "k": k, "v": v}
    size = (q.layout.width, rows)
    rec.emit("split_qkv", inputs, outputs, defines, label=label, viewport=size, row="pos")


def scores(
    rec: Recorder, q: Tensor, k: Tensor, rows: int, tile_rows: int, n_head: int, scale: float, name: str
) -> Tensor:
    """scores[t * n_head + head, s] = scale * q[pos + t] . k[s] per head for `rows` rows t, MASKED where s > pos + t."""
    padded = -(-rows // tile_rows) * tile_rows
    y = rec.scratch(name, Layout(padded * n_head, k.rows, (tile_rows, 1)))
    defines = {"N_HEAD": n_head, "D4": q.cols // n_head // 4, "SCALE": scale, "MASKED": MASKED}
    rec.emit("scores", {"q": q, "k": k}, {"y": y}, defines, flops=2 * rows * k.rows * q.cols)
    return y


def softmax(rec: Recorder, x: Tensor, n_head: int, name: str) -> Tensor:
    """The softmax of each row of scores up to its position, zero beyond."""
    stats = rec.scratch(f"{name}.stats", Layout(x.rows, 4 * min(2, -(-x.cols // 4)), x.layout.tiles))
    rec.emit("softmax_stats", {"x": x}, {"y": stats}, {"N_HEAD": n_head})
    y = rec.scratch(name, x.layout)
    rec.emit("softmax", {"x": x, "stats": stats}, {"y": y}, {"N_HEAD": n_head})
    return y


def attend(rec: Recorder, pattern: Tensor, v: Tensor, rows: int, n_head: int, name: str, dtype: str) -> Tensor:
    """z[t] = sum over s of pattern[t, s] v[s], per head, `[rows, n_head * d]`."""
    y = rec.scratch(name, Layout(rows, v.cols, (pattern.layout.tiles[0], 2 if dtype == "f16" else 1), dtype))
    defines = {"N_HEAD": n_head, "D4": v.cols // n_head // 4}
    rec.emit("attend", {"x": pattern, "v": v}, {"y": y}, defines, flops=2 * rows * v.rows * v.cols)
    return y


def attend_row(rec: Recorder, score: Tensor, v: Tensor, n_head: int, name: str) -> Tensor:
    """z of one row straight from its scores `[n_head, n_positions]`."""
    y = rec.scratch(name, Layout(1, v.cols))
    defines = {"N_HEAD": n_head, "D4": v.cols // n_head // 4}
    rec.emit("attend_row", {"x": score, "v": v}, {"y": y}, defines, flops=2 * v.rows * v.cols)
    return y
