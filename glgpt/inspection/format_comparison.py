"""Compares the predictions of a model in one number format (such as q8) with those in another format, on a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from glgpt.inference.model import LanguageModel
from glgpt.inspection.evaluate import ids_and_window
from glgpt.program.tolerance import kl_divergence


@dataclass(frozen=True)
class Comparison:
    """The difference between predictions in `dtype` and in `compared_to`, over all tokens of a text but the first.

    `nats_per_token` is the loss in `dtype`, and `compared_nats` is the loss in `compared_to`. `kl` is the mean KL
    divergence from the predictions in `compared_to`, in nats per token. `agreement` is the share of tokens at which the
    likeliest next token is the same in both formats.
    """

    dtype: str
    compared_to: str
    nats_per_token: float
    compared_nats: float
    kl: float
    agreement: float
    tokens: int
    window: int


def compare_formats(
    model: LanguageModel,
    other: LanguageModel,
    text: str,
    window: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compares `model` with `other`, the same model in another format, on `text`.

    The text is read in consecutive windows of `window` tokens (default: the model's context).

    Raises GlgptError as `evaluate` does.
    """
    ids, window = ids_and_window(model, text, window)
    predicted = len(ids) - 1
    nats, kl, same = np.zeros(2), 0.0, 0
    for first in range(0, predicted, window):
        inputs, targets = ids[first : min(first + window, predicted)], ids[first + 1 : first + window + 1]
        ours, theirs = model.logits(inputs.tolist()), other.logits(inputs.tolist())
        nats += _losses(ours, targets), _losses(theirs, targets)
        kl += float(kl_divergence(theirs, ours).sum())
        same += int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        if progress:
            progress(first + len(inputs), predicted)
    loss, compared = (float(n) / predicted for n in nats)
    return Comparison(
        str(model.formats), str(other.formats), loss, compared, kl / predicted, same / predicted, predicted, window
    )


def _losses(logits: NDArray[np.floating], targets: NDArray[np.integer]) -> float:
    """Returns the sum of the targets' cross-entropies, in nats."""
    x = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return float((np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(x)), targets]).sum())
