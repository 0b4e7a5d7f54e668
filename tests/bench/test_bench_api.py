"""Tests `benchmarks/api/run.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.chat_models import chat_llama

SCRIPT = Path(__file__).parents[2] / "benchmarks/api/run.py"


def bench_api(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_it_measures_each_number_of_clients_with_and_without_a_schema(tmp_path: Path) -> None:
    model = chat_llama(tmp_path / "model.gguf", context=256)
    options = ("--model", str(model), "--device", "software", "--tokens", "4", "--rounds", "1", "--clients", "1", "2")
    made = bench_api(*options, "--json")
    assert made.returncode == 0, made.stderr
    rows = json.loads(made.stdout)["rows"]
    assert [(r["clients"], r["constraint"]) for r in rows] == [(n, c) for n in (1, 2) for c in ("none", "JSON schema")]
    for row in rows:
        assert 0 < row["tokens_per_answer"] <= 4 and [row["tokens_per_s"]] == row["rounds"] and row["tokens_per_s"] > 0
        assert row["tokens_per_answer"] == 4 or row["constraint"] == "none"  # the schema's string is longer


@pytest.mark.slow
def test_bad_input_ends_it_with_2() -> None:
    assert "--clients must be at least 1" in (made := bench_api("--clients", "0")).stderr and made.returncode == 2
    made = bench_api("--model", "/nope")
    assert made.returncode == 2 and "glgpt api ended with 2" in made.stderr and "'/nope'" in made.stderr
