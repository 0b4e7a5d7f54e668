"""Token and position embeddings, and their gradients.

The gradient of a token's embedding is a sum over the rows that have this token. `sorted_index` lists these rows for
each token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from glgpt.ops.partial_sums import Rows
from glgpt.program.layout import Layout, fold, texels
from glgpt.program.recorder import Recorder
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor


def embed(
    rec: Recorder,
    ids: Tensor,
    tokens: Tensor,
    positions: Tensor | None,
    out: Layout,
    batch: int | Rows = 1,
    index: tuple[Tensor, Tensor] | None = None,
    *,
    scale: float = 1.0,
) -> Tensor:
    """Records y[t] = scale * tokens[:, ids[t]] + positions[pos + t // batch]; without `positions`, only the first term.

    `ids` is `[T, 1]`, `tokens` is `[n_embd, vocab]`, and `positions` is `[n_positions, n_embd]`. `out` is the layout of
    y, `[T, n_embd]`. With `Rows` instead of a batch size, each row has the position of its text. The gradient needs
    `index`, the two arrays of `sorted_index` for the ids; without it, the backward pass raises ValueError.
    """
    y = rec.scratch("embed", out)
    inputs = {"ids": ids, "tokens": tokens} | ({"positions": positions} if positions else {})
    batch, rows = (1, batch) if isinstance(batch, Rows) else (batch, None)
    inputs |= {"places": rows.places} if rows and positions else {}
    times: dict[str, int | float | str] = {"SCALE": scale} if scale != 1 else {}
    rec.emit("embed", inputs, {"y": y}, {"BATCH": batch, **times})

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        if index is None:
            raise ValueError(f"{y.name}: the gradient of an embedding needs the index of its ids (sorted_index)")
        d_tokens = rec.scratch(f"d.{tokens.name}", fold(tokens.rows, tokens.cols, rec.limits.max_texture_size))
        inputs = {"dy": d[0], "order": index[0], "starts": index[1]} | ({"plus": sums[0]} if sums[0] else {})
        rec.emit("embed_vjp", inputs, {"y": d_tokens}, times, columns=1)
        if positions is None:
            return [d_tokens, None]
        d_positions = rec.scratch(f"d.{positions.name}", positions.layout)
        inputs = {"dy": d[0]} | ({"plus": sums[1]} if sums[1] else {})
        rec.emit("position_vjp", inputs, {"y": d_positions}, {"BATCH": batch})
        return [d_tokens, d_positions]

    rec.differentiable(y, (tokens, positions), vjp)
    return y


def index_layouts(rows: int, vocab: int, limit: int) -> tuple[Layout, Layout]:
    """Returns the layouts of the two arrays that `sorted_index` returns for ids `[rows]`.

    `limit` is the maximum size of a texture in texels.
    """
    return Layout(rows, 4), fold(1, texels(vocab), limit)


def sorted_index(ids: NDArray[np.integer], vocab: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns an index of ids `[T]`, with which the gradient of `embed` finds the rows of each token.

    The first array `[T, 4]` has (row, id % 4, 0, 0) for all rows of ids, sorted by id. The second array, `[1, vocab]`
    padded to whole texels, has a texel (first, end, 0, 0) for every four ids: rows first to end - 1 of the first array
    have these ids.
    """
    order = np.argsort(ids, kind="stable")
    rows = np.zeros((len(ids), 4), np.float32)
    rows[:, 0], rows[:, 1] = order, ids[order] % 4
    ends = np.searchsorted(ids[order], np.arange(0, vocab + 4, 4))
    runs = np.zeros((-(-vocab // 4), 4), np.float32)
    runs[:, 0], runs[:, 1] = ends[: len(runs)], ends[1 : len(runs) + 1]
    return rows, runs.reshape(1, -1)
