"""Tests `glgpt compare --reference transformers` with the embedded model and the goldens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from glgpt.cli import main

GOLDENS = sorted(path.parent for path in (Path(__file__).parents[1] / "goldens").glob("*/reference.npz"))
PROMPT = "First Citizen:\nBefore we proceed any further, hear me speak."


def test_the_embedded_model_agrees(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["compare", "--model", "shakespeare", "--reference", "transformers", "--activations", "--json"]
    assert main([*args, "--prompt", PROMPT, "--ids", ",".join(map(str, range(256)))]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [case["tokens"] for case in cases] == [20, 256]
    assert all(len(case["activations"]) == 6 * 14 + 3 and max(case["kl"]) < 1e-9 for case in cases)


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: path.name)
def test_goldens_agree(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = np.load(golden / "reference.npz")["tokens"]
    args = ["compare", "--model", str(golden), "--reference", "transformers", "--activations"]
    assert main([*args, "--ids", ",".join(map(str, tokens))]) == 0
    assert "within tolerance" in capsys.readouterr().out
