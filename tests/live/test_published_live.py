"""Tests that docs/guide/evaluate.md states the loss measured over all of the validation text."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_the_guide_states_the_loss_of_all_tokens() -> None:
    """Runs the guide's command. `tests/inspection/test_evaluate.py` compares the first windows with float64."""
    stated = re.search(
        r"^([\d.]+) nats/token, ([\d.]+) bits/byte", (ROOT / "docs/guide/evaluate.md").read_text("utf-8"), re.MULTILINE
    )
    assert stated
    text = ROOT / "tests/data/shakespeare-validation.txt"
    command = [sys.executable, "-m", "glgpt", "eval", str(text), "--window", "256", "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=800).stdout)
    assert f"{found['nats_per_token']:.4f}" == stated[1], found
    assert f"{found['bits_per_byte']:.4f}" == stated[2], found
