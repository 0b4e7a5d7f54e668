"""Tests the loss on a text."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from helpers.reference import gpt2, nats_of

from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.inspection.evaluate import evaluate

TEXT = (Path(__file__).parents[1] / "data/shakespeare-validation.txt").read_text()  # the last 10% of tinyshakespeare
PUBLISHED = 2.68105  # nats per token of the first 600 tokens of TEXT, computed by NumPy in float64
GOLDENS = Path(__file__).parents[1] / "goldens"


def test_every_token_but_the_first_is_predicted_once_from_its_window() -> None:
    text, seen = TEXT[:40], []
    with LanguageModel.from_pretrained() as model:
        assert model.tokenizer
        ids = np.array(model.tokenizer.encode(text))
        result = evaluate(model, text, 8, lambda done, total: seen.append((done, total)))
        wanted = 0.0
        for t in range(1, len(ids)):
            first = (t - 1) // 8 * 8
            wanted += nats_of(model.logits(ids[first:t].tolist())[-1:], ids[t : t + 1])
    assert result.tokens == len(ids) - 1
    assert seen[-1] == (len(ids) - 1, len(ids) - 1)
    assert result.nats_per_token == pytest.approx(wanted / (len(ids) - 1), abs=1e-5)
    assert result.bits_per_byte == pytest.approx(wanted / math.log(2) / len(text), rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(result.nats_per_token))
    assert result.tokens_per_s > 0


@pytest.mark.slow
def test_validation_loss_is_the_published_one() -> None:
    """Checks the first windows of the validation text. The loss of all 49,421 tokens (3.3410) takes 90 s to compute."""
    with LanguageModel.from_pretrained() as model, Checkpoint.open() as checkpoint:
        assert model.tokenizer
        ids = model.tokenizer.encode(TEXT)
        text = model.tokenizer.decode(ids[:600])  # two whole windows and a part of a third
        assert model.tokenizer.encode(text) == ids[:600] and len(ids) - 1 == 49421
        result = evaluate(model, text, 256)
        weights = {name: checkpoint.read(name) for name in checkpoint.names}
        wanted = 0.0
        for first in (0, 256, 512):
            window = np.array(ids[first : min(first + 257, 600)])
            wanted += nats_of(gpt2(model.config, weights, window[:-1].tolist())["logits"], window[1:])
    assert result.tokens == 599
    assert result.nats_per_token == pytest.approx(wanted / 599, abs=2e-5)
    assert result.nats_per_token == pytest.approx(PUBLISHED, abs=2e-5)


def test_what_cannot_be_evaluated_is_refused() -> None:
    with LanguageModel.from_pretrained() as model:
        for text, window in (("", None), ("a", None), ("some text", 257), ("some text", 0)):
            with pytest.raises(GlgptError):
                evaluate(model, text, window)
    with LanguageModel.from_pretrained(GOLDENS / "wide") as model, pytest.raises(GlgptError, match="no tokenizer"):
        evaluate(model, "some text")
