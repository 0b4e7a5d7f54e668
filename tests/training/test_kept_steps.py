"""Tests the checkpoints of earlier steps that a run keeps in addition to the last one: `RUN@400`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import glgpt
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.steps import kept_steps
from glgpt.cli import main
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.system.files import data_path

TINY = {"n_layer": 1, "n_embd": 8, "n_head": 1, "context": 16, "batch": 4, "device": "software"}
QUIET = {"eval_every": 0, "sample_every": 0, "save_every": 4}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    text = data_path("tests/data/shakespeare-validation.txt").read_text(encoding="utf-8")[:20_000]
    Path("play.txt").write_text(text, encoding="utf-8")
    glgpt.train("play.txt", out="run", steps=14, keep=2, **TINY, **QUIET)
    return tmp_path / "run"


@pytest.mark.slow
def test_the_last_saved_steps_are_kept_and_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert kept_steps(run) == [12, 14]
    last, before = (Checkpoint.open(name).read("wte.weight") for name in ("run@14", "run@12"))
    assert (last == Checkpoint.open("run").read("wte.weight")).all() and (last != before).any()
    assert (run / "model.safetensors").samefile(run / "steps/14/model.safetensors")  # a hard link needs no space
    with LanguageModel.from_pretrained("run@12", device="software") as model:
        wanted = model.generate("T", 5, temperature=0).read()
    quick = ["--tokens", "5", "--temperature", "0", "--json", "--device", "software"]
    assert main(["generate", "T", "--model", "run@12", *quick]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == wanted
    assert main(["generate", "--model", "run@12", *quick]) == 0  # without a prompt
    assert len(json.loads(capsys.readouterr().out)["ids"]) == 5


@pytest.mark.slow
def test_a_step_that_is_not_kept_is_named_with_those_that_are(run: Path) -> None:
    with pytest.raises(GlgptError, match=r"has no step 4: its saved steps are 12, 14 \(glgpt train --keep"):
        Checkpoint.open("run@4")
    with pytest.raises(GlgptError, match="run has no step last: its saved steps are 12, 14"):
        Checkpoint.open("run@last")
    assert main(["generate", "--model", "run@4"]) == 2
    glgpt.train(resume="run", steps=16, keep=0)
    assert kept_steps(run) == []
    with pytest.raises(GlgptError, match="only its last checkpoint is saved"):
        Checkpoint.open("run@16")


def test_a_step_of_what_is_not_a_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the error reported an invalid name of a model on the Hub."""
    monkeypatch.chdir(tmp_path)
    Path("notes").mkdir()
    for name, why in (
        ("runs/none@4", "the folder runs/none does not exist"),
        ("notes@4", "folder notes has no config.json"),
    ):
        with pytest.raises(GlgptError, match=f"{name} is not a step of a run: .*{why}; give RUN@STEP"):
            Checkpoint.open(name)
    with pytest.raises(GlgptError, match="org/model@main") as caught:
        Checkpoint.open("org/model@main")
    assert "step" not in str(caught.value)  # `main` is a revision on the Hub, not a step; revisions are not supported


@pytest.mark.slow
def test_a_resumed_run_forgets_later_steps_and_keeps_on(run: Path) -> None:
    (run / "steps/20").mkdir()  # a later step than the run's last checkpoint
    (run / "steps/.18.half").mkdir()
    glgpt.train(resume="run", steps=16)
    assert kept_steps(run) == [14, 16] and not list((run / "steps").glob(".*"))
