"""Token and position embedding."""

from __future__ import annotations

from glgpt.record import Recorder, Tensor
from glgpt.tensor import Layout


def embed(rec: Recorder, ids: Tensor, wte: Tensor, wpe: Tensor, out: Layout, name: str = "embed") -> Tensor:
    """y[t] = wte[:, ids[t]] + wpe[pos + t]: ids `[T, 1]`, wte `[n_embd, vocab]`, wpe `[n_positions, n_embd]`.

    `out` is the layout of y, `[T, n_embd]`.
    """
    y = rec.scratch(name, out)
    rec.emit("embed", {"ids": ids, "wte": wte, "wpe": wpe}, {"y": y})
    return y
