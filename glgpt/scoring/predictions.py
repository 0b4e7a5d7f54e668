"""Computes a model's predictions of the tokens of a text, and metrics of these predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.text.dataset import Ids

BINS = 10  # number of equally wide bins in the reliability diagram
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Predictions:
    """The predictions of N targets (the tokens to predict); each field has the shape `[N]`.

    `nats` is -log of the target's probability. `ranks` is the target's rank by probability, from 0 for the likeliest
    token; equally likely tokens rank by id. `confidence` is the probability of the likeliest token.
    """

    nats: NDArray[np.float64]
    ranks: NDArray[np.int64]
    confidence: NDArray[np.float64]

    @classmethod
    def empty(cls, count: int) -> Predictions:
        """Returns predictions full of zeros, to be filled in."""
        return cls(np.zeros(count), np.zeros(count, np.int64), np.zeros(count))


@dataclass(frozen=True)
class Figures:
    """The metrics of a predictor. `bins` has (mean confidence, accuracy, tokens) of each non-empty confidence bin."""

    name: str
    nats_per_token: float
    perplexity: float
    bits_per_byte: float
    top_1: float
    top_5: float
    # |mean confidence - accuracy|, averaged over the bins with their numbers of tokens as weights; None for chance
    calibration_error: float | None
    bins: tuple[tuple[float, float, int], ...]


def figures(name: str, found: Predictions, size: int) -> Figures:
    """Returns the metrics of a predictor on targets that have `size` bytes in total."""
    count = len(found.nats)
    loss = float(found.nats.sum()) / count
    hit = found.ranks == 0
    which = np.minimum((found.confidence * BINS).astype(np.int64), BINS - 1)
    bins = []
    for b in range(BINS):
        inside = which == b
        if held := int(inside.sum()):
            bins.append((float(found.confidence[inside].sum()) / held, int(hit[inside].sum()) / held, held))
    error = sum(held / count * abs(confidence - accuracy) for confidence, accuracy, held in bins)
    top_5 = int((found.ranks < 5).sum()) / count
    return Figures(name, loss, _exp(loss), _bits(loss * count, size), int(hit.sum()) / count, top_5, error, tuple(bins))


def chance(vocab_size: int, count: int, size: int) -> Figures:
    """Returns the metrics of a predictor for which all tokens are equally likely; see `figures` for `size`."""
    loss = math.log(vocab_size)
    return Figures(
        "chance", loss, float(vocab_size), _bits(loss * count, size), 1 / vocab_size, min(1.0, 5 / vocab_size), None, ()
    )


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


def _bits(nats: float, size: int) -> float:
    return nats / math.log(2) / max(1, size)


def targets_of(first: Sequence[int] | NDArray[Any], context: int) -> NDArray[np.int64]:
    """Returns the positions of the targets of windows that start at the positions `first`.

    The targets of a window are the `context` tokens after its first token. The result has `len(first) * context`
    values.
    """
    found: NDArray[np.int64] = (np.asarray(first, np.int64)[:, None] + np.arange(1, context + 1)).reshape(-1)
    return found


def predict(
    model: LanguageModel, ids: Ids, first: Sequence[int] | NDArray[Any], context: int, progress: Progress | None = None
) -> Predictions:
    """Returns the model's predictions for windows of `context` + 1 tokens that start at the positions `first`.

    Raises GlgptError as `LanguageModel.logits` does, and if a window exceeds the text.
    """
    found = Predictions.empty(len(first) * context)
    for i, start in enumerate(map(int, first)):
        window = np.asarray(ids[start : start + context + 1], np.int64)
        if len(window) <= context:
            raise GlgptError(f"a window of {context} tokens at {start} exceeds the text, which has {len(ids)} tokens")
        rows = slice(i * context, (i + 1) * context)
        predict_logits(model.logits(window[:-1].tolist()), window[1:], found, rows)
        if progress:
            progress((i + 1) * context, len(first) * context)
    return found


def predict_logits(logits: NDArray[np.float32], targets: NDArray[np.int64], into: Predictions, rows: slice) -> None:
    """Computes the predictions of `targets` `[T]` from logits `[T, vocab]`; writes them to `rows` of `into`."""
    own = np.take_along_axis(logits, targets[:, None], axis=1)
    greater = (logits > own).sum(axis=1)
    equal_before = ((logits == own) & (np.arange(logits.shape[1]) < targets[:, None])).sum(axis=1)
    into.ranks[rows] = greater + equal_before
    most = logits.max(axis=1, keepdims=True).astype(np.float64)
    total = np.zeros(len(logits))
    for at in range(0, logits.shape[1], 4096):
        total += np.exp(logits[:, at : at + 4096] - most).sum(axis=1)
    into.nats[rows] = np.log(total) - (own - most)[:, 0]
    into.confidence[rows] = 1 / total
