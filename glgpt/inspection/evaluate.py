"""A model's loss on a text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from glgpt.errors import GlgptError
from glgpt.inference.model import GPT2


@dataclass(frozen=True)
class Evaluation:
    """The mean loss of every token of a text but the first."""

    nats_per_token: float
    bits_per_byte: float
    perplexity: float
    tokens: int
    bytes: int
    window: int
    seconds: float
    tokens_per_s: float


def evaluate(
    model: GPT2, text: str, window: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Predicts every token of `text` but the first, each once.

    The text is read in consecutive windows of `window` tokens (default: the model's whole context); a token's context
    is what stands before it in its window. `bits_per_byte` spreads the loss over all bytes of the text.
    """
    if model.tokenizer is None:
        raise GlgptError(f"{model.name} has no tokenizer, so text cannot be evaluated; add vocab.json and merges.txt")
    most = model.config.n_positions
    window = most if window is None else window
    if not 1 <= window <= most:
        raise GlgptError(f"window {window} is not within 1 and {most}, the context of {model.name}")
    ids = np.asarray(model.tokenizer.encode(text))
    predicted = len(ids) - 1
    if predicted < 1:
        raise GlgptError(f"the text has {len(ids)} token(s); at least 2 are needed")
    start, nats = time.perf_counter(), 0.0
    for first in range(0, predicted, window):
        chunk = ids[first : first + window + 1]
        nats += nats_of(model.logits(chunk[:-1].tolist()), chunk[1:])
        if progress:
            progress(first + len(chunk) - 1, predicted)
    seconds = time.perf_counter() - start
    size = len(text.encode())
    loss = nats / predicted
    perplexity = math.exp(loss) if loss < 700 else math.inf
    rate = predicted / seconds
    return Evaluation(loss, nats / math.log(2) / size, perplexity, predicted, size, window, seconds, rate)


def nats_of(logits: np.ndarray, targets: np.ndarray) -> float:
    """The summed cross entropy of `targets` [T] under `logits` [T, vocab], in float64, a few rows at a time."""
    total = 0.0
    for i in range(0, len(targets), 64):
        rows = logits[i : i + 64].astype(np.float64)
        rows -= rows.max(axis=1, keepdims=True)
        picked = np.take_along_axis(rows, targets[i : i + 64, None], axis=1)
        total += float((np.log(np.exp(rows).sum(axis=1, keepdims=True)) - picked).sum())
    return total
