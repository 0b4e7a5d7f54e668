"""Tests `glgpt eval --suite` on a run, and on any model and text."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.reference import nats_of

import glgpt
from glgpt.cli import main
from glgpt.errors import FileError
from glgpt.scoring.suite import Texts, score, texts_of_run
from glgpt.text.files import Text

TEXT = (Path(__file__).parents[1] / "data/shakespeare-validation.txt").read_text()[:6000]
SIZE = {"n_layer": 1, "n_head": 2, "n_embd": 16, "context": 16, "batch": 4}
QUIET = {"eval_every": 0, "sample_every": 0, "save_every": 0}
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "play.txt").write_text(TEXT)
    glgpt.train(folder / "play.txt", out=folder / "run", steps=3, device="software", **SIZE, **QUIET)
    return folder / "run"


@pytest.mark.slow
def test_a_run_is_scored_on_the_text_it_kept_back(run: Path, capsys: Capture) -> None:
    assert main(["eval", str(run), "--suite", "--tokens", "160", "--json", "--device", "software"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["figures"]] == ["model", "chance", "unigram", "bigram", "trigram", "embedded"]
    model, blind, *_ = found["figures"]
    assert (found["tokens"], found["window"], found["bytes"]) == (160, 16, 160)
    assert blind["nats_per_token"] == pytest.approx(np.log(256))
    held = TEXT.encode()[5400:]
    first = [i * 37 // 10 * 16 for i in range(10)]
    with glgpt.LanguageModel.from_pretrained(run, device="software") as loaded:
        wanted = sum(
            nats_of(
                loaded.logits(list(held[at : at + 16])), np.frombuffer(held[at + 1 : at + 17], np.uint8).astype(int)
            )
            for at in first
        )
    assert model["nats_per_token"] == pytest.approx(wanted / 160, abs=1e-6)
    assert model["bits_per_byte"] == pytest.approx(wanted / 160 / np.log(2), abs=1e-6)
    assert 0 <= model["top_1"] <= model["top_5"] <= 1
    assert len(found["sample"]) > 50 and found["copies"]["longest_copy"] < 20 and found["task"] is None


@pytest.mark.soak
@pytest.mark.slow
def test_any_model_is_scored_on_any_text(run: Path, tmp_path: Path, capsys: Capture) -> None:
    held = tmp_path / "held.txt"
    held.write_text(TEXT[5000:])
    args = ["eval", str(held), "--suite", "--tokens", "16", "--device", "software"]
    assert main([*args, "--model", str(run), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["predictor"] for row in rows] == [
        "model",
        "chance",
        "embedded",
    ]  # baselines need the training text, which is unknown
    assert main([*args, "--training", str(run.parent / "play.txt")]) == 0
    text = capsys.readouterr().out
    assert "trigram" in text and "embedded" not in text.split("\n", 1)[1]  # the embedded model is the scored one
    assert "of the words are known" in text


@pytest.mark.slow
def test_a_toy_task_is_scored_by_exact_match(tmp_path: Path) -> None:
    lines = "".join(f"{a}+{b}={a + b}\n" for a in range(10) for b in range(10))
    (tmp_path / "sums.txt").write_text(lines)
    glgpt.train(tmp_path / "sums.txt", out=tmp_path / "run", steps=2, device="software", **SIZE, **QUIET)
    train, held = Text.of_string(lines).split(0.1)
    with glgpt.LanguageModel.from_pretrained(tmp_path / "run", device="software") as model:
        found = score(model, Texts(held, train))
    assert found.task is not None and 0 < found.task.lines <= 10 and found.task.exact_match == 0


def test_a_text_that_was_moved_or_changed_is_not_scored(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    record, text = tmp_path / "run/train.json", tmp_path / "play.txt"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"files": [str(text)]}))
    with pytest.raises(FileError, match=r"play\.txt, the text of .*run, cannot be read.*; give the text and --model"):
        texts_of_run(tmp_path / "run")
    text.write_text(TEXT)
    assert texts_of_run(tmp_path / "run").held.size == 600
    text.write_text(TEXT[1:] + TEXT[0])
    with pytest.raises(FileError, match=r"play\.txt is not the text that .*run was trained on: restore its files"):
        texts_of_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["missing.txt", "--suite"], "missing.txt"),
        ([".", "--suite"], "not a training run"),
        (["-", "--suite", "--json", "--csv"], "cannot be combined"),
        (["-", "--suite", "--window", "4"], "--window"),
        ([".", "--suite", "--model", "gpt2"], "remove --model"),
        (["-", "--csv"], "--suite"),
        (["short.txt", "--tokens", "8"], "--suite"),
        (["short.txt", "--suite"], "too few"),
        (["-", "--suite", "--device", "software"], "too few"),
    ],
)
def test_what_cannot_be_scored_is_refused_in_one_line(
    args: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("a few words")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a few words")))
    assert main(["eval", *args]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
