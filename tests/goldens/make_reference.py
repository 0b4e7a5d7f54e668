"""Completes every family's reference: the greedy continuation, and arrays to save."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def with_greedy(model: Any, tokens: np.ndarray, caught: dict[str, torch.Tensor], context: int) -> dict[str, np.ndarray]:
    """Returns a `reference.npz`: `tokens`, up to 16 `greedy` ids after their first half, and the activations.

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
