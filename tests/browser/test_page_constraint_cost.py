"""Tests `benchmarks/web/constraints.py` with a page of random weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from browser import TEST_FLAGS

SCRIPT = Path(__file__).parents[2] / "benchmarks/web/constraints.py"


def measured(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.slow
def test_each_constraint_is_compared_with_none(narrow: tuple[Path, Path], chromium: str) -> None:
    size = ("--visits", "1", "--texts", "1", "--tokens", "6")
    made = measured(
        "--model", str(narrow[0]), *size, "--chromium", chromium, f"--flags={' '.join(TEST_FLAGS)}", "--json"
    )
    assert made.returncode == 0, made.stderr
    none, *rows = json.loads(made.stdout)["rows"]
    assert (none["constraint"], none["ratio"]) == ("none", 1) and none["token_ms"] > 0
    assert [row["constraint"] for row in rows] == ["any text", "string", "title", "person", "order"]
    for row in rows:
        assert row["visits"] == [row["ratio"]] and row["ratio"] == pytest.approx(row["token_ms"] / none["token_ms"])


@pytest.mark.slow
def test_bad_input_ends_it_with_2() -> None:
    assert "--tokens at least 2" in (made := measured("--tokens", "1")).stderr and made.returncode == 2
    assert "is not a program" in (made := measured("--chromium", "/nope")).stderr and made.returncode == 2
