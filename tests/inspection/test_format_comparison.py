"""Tests the comparison of two formats on a text."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.reference import nats_of

from glgpt.cli import main
from glgpt.inference.model import LanguageModel
from glgpt.inspection.format_comparison import compare_formats
from glgpt.program.tolerance import kl_divergence

TEXT = (Path(__file__).parents[1] / "data/shakespeare-validation.txt").read_text()[:300]
WINDOW = 40


@pytest.mark.soak
@pytest.mark.slow
def test_a_comparison_is_that_of_the_logits_of_each_window() -> None:
    """Fails if a window is left out, or the formats are exchanged."""
    with (
        LanguageModel.from_pretrained(None, dtype="q4") as model,
        LanguageModel.from_pretrained(None, dtype="f32") as f32,
    ):
        found = compare_formats(model, f32, TEXT, WINDOW)
        assert model.tokenizer
        ids = np.array(model.tokenizer.encode(TEXT))
        starts = range(0, len(ids) - 1, WINDOW)
        windows = [(ids[i : min(i + WINDOW, len(ids) - 1)].tolist(), ids[i + 1 : i + WINDOW + 1]) for i in starts]
        pairs = [(model.logits(inputs), f32.logits(inputs), targets) for inputs, targets in windows]
    count = len(ids) - 1
    assert (found.tokens, found.window, found.dtype, found.compared_to) == (count, WINDOW, "q4", "f32")
    assert found.kl == pytest.approx(sum(kl_divergence(b, a).sum() for a, b, _ in pairs) / count)
    assert found.nats_per_token == pytest.approx(sum(nats_of(a, t) for a, _, t in pairs) / count)
    assert found.compared_nats == pytest.approx(sum(nats_of(b, t) for _, b, t in pairs) / count)
    assert found.agreement == sum((a.argmax(1) == b.argmax(1)).sum() for a, b, _ in pairs) / count
    assert 1e-4 < found.kl < 0.05 and 0.8 < found.agreement < 1


@pytest.mark.soak
@pytest.mark.slow
def test_eval_prints_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "play.txt"
    text.write_text(TEXT)
    assert main(["eval", str(text), "--dtype", "q8", "--compare-to", "f32", "--window", "40"]) == 0
    said = capsys.readouterr().out
    assert "nats/token in q8" in said and "in f32; KL divergence" in said and "the same most likely token for 9" in said
    assert main(["eval", str(text), "--dtype", "f32", "--compare-to", "f32", "--window", "40", "--json"]) == 0
    same = json.loads(capsys.readouterr().out)
    assert (same["kl"], same["agreement"], same["compared_nats"]) == (0, 1, same["nats_per_token"])


def test_a_suite_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "play.txt").write_text(TEXT)
    assert main(["eval", str(tmp_path / "play.txt"), "--suite", "--compare-to", "f32"]) == 2
    assert "--compare-to cannot be combined with --suite" in capsys.readouterr().err
