"""Computes a model's loss on a text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel


@dataclass(frozen=True)
class Evaluation:
    """The mean loss over all tokens of a text except the first, in several units, and the speed of the evaluation."""

    nats_per_token: float
    bits_per_byte: float
    perplexity: float
    tokens: int
    bytes: int
    window: int
    seconds: float
    tokens_per_s: float


def evaluate(
    model: LanguageModel, text: str, window: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Evaluation:
    """Returns a model's mean loss over every token of `text` except the first; each token is predicted once.

    The text is divided into consecutive windows of `window` tokens (default: the model's context). At each token of a
    window, the model predicts the next token of the text from the tokens of the window so far. `bits_per_byte` divides
    the total loss by the bytes of the text. Raises GlgptError if the model has no tokenizer, the window is out of
    range, the text has fewer than 2 tokens, or a logit is not finite.
    """
    ids, window = ids_and_window(model, text, window)
    predicted = len(ids) - 1
    start, nats = time.perf_counter(), 0.0
    windows = [ids[first : first + window + 1].tolist() for first in range(0, predicted, window)]
    for first, losses in zip(range(0, predicted, window), model.losses(windows), strict=True):
        nats += float(losses.sum(dtype=np.float64))
        if progress:
            progress(first + len(losses), predicted)
    seconds = time.perf_counter() - start
    size = len(text.encode())
    loss = nats / predicted
    perplexity = math.exp(loss) if loss < 700 else math.inf
    rate = predicted / seconds
    return Evaluation(loss, nats / math.log(2) / size, perplexity, predicted, size, window, seconds, rate)


def ids_and_window(model: LanguageModel, text: str, window: int | None) -> tuple[NDArray[np.int64], int]:
    """Returns the ids of a text, and the number of tokens in a window (default: the model's context).

    Raises GlgptError if the model has no tokenizer, the window is out of range or the text has fewer than 2 tokens.
    """
    if model.tokenizer is None:
        raise GlgptError(f"{model.name} has no tokenizer, so text cannot be evaluated; add vocab.json and merges.txt")
    window, most = model.context if window is None else window, model.max_context
    if not 1 <= window <= most:
        raise GlgptError(f"window {window} is not from 1 to {most}, the context of {model.name}")
    ids = np.asarray(model.tokenizer.encode(text), np.int64)
    if len(ids) < 2:
        raise GlgptError(f"the text has {len(ids)} token(s); at least 2 are needed")
    return ids, window
