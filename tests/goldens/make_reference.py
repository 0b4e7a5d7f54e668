"""Completes the reference of a model of any family with its greedy continuation, as arrays to save."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def with_greedy(model: Any, tokens: np.ndarray, caught: dict[str, torch.Tensor], context: int) -> dict[str, np.ndarray]:
    """Returns the arrays of a `reference.npz`: `tokens`, `greedy` and the activations.

    `greedy` has the first half of `tokens` and up to 16 greedy ids after it.

    Raises AssertionError if float32 could not distinguish the two best ids.
    """
    greedy = tokens[: max(1, min(len(tokens) // 2, len(tokens) - 1))].tolist()
    for _ in range(min(16, context - len(greedy))):
        last = model(torch.tensor([greedy]), use_cache=False).logits[0, -1]
        best, second = last.topk(2).values.tolist()
        assert best - second > 1e-3, "the two best ids are too close for float32; change the seed"
        greedy.append(int(last.argmax()))
    arrays = {name: value.numpy().astype(np.float32) for name, value in caught.items()}
    return {"tokens": tokens.astype(np.int32), "greedy": np.array(greedy, np.int32), **dict(sorted(arrays.items()))}
