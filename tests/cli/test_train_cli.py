"""Tests `glgpt train` with a fake trainer: options, exit codes, output; presets and schedules."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import fake_trainer
from helpers.fake_trainer import PLAY, fake  # noqa: F401
from rich.console import Console

from glgpt.checkpoint.finding import embedded_weights
from glgpt.cli import main, training_dashboard
from glgpt.cli.commands.train import SIZES
from glgpt.cli.parser import build_parser
from glgpt.cli.training_dashboard import Board, Log, clock, planning, shown, sparkline
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.training import trainer
from glgpt.training.events import Start, Step
from glgpt.training.plan import Plan
from glgpt.training.program import Recipe
from glgpt.training.run import train
from glgpt.training.settings import PRESETS, settings_for

Capture = pytest.CaptureFixture[str]
SHAPE = "--n-layer 1 --n-embd 8 --n-head 1 --context 16 --batch 4".split()
DOCS = Path(__file__).parents[2] / "docs/guide/train.md"


def vocabulary(tokenizer: str) -> int:
    return {"bytes": 256, "gpt2": 50257}.get(tokenizer) or int(tokenizer.removeprefix("bpe:"))


COMMANDS = "train|export|serve|data|data fetch|data clean|tokenizer|tokenizer train|tokenizer inspect|split serve"


@pytest.mark.parametrize("words", [words.split() for words in COMMANDS.split("|")], ids=" ".join)
def test_help_has_an_example_that_parses(words: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0
    examples = [shlex.split(line, comments=True) for line in text.partition("examples:\n")[2].strip().splitlines()]
    assert examples[0][: len(words) + 1] == ["glgpt", *words]
    for example in examples:
        assert example[0] == "glgpt" and callable(build_parser().parse_args(example[1:]).run)


def test_training_prints_its_figures(capsys: Capture) -> None:
    args = ["train", "play.txt", "--out", "run", "--steps", "30", *SHAPE, "--eval-every", "10", "--sample-every", "15"]
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(
        r"run: 30 steps, loss \d\.\d{4}, validation \d\.\d{4} nats/token, \d\.\d{4} bits/byte\n"
        r"try it: glgpt generate --model run\n",
        out,
    )
    lines = err.splitlines()
    assert lines[0].startswith("run: 3,064 parameters, 100,386 tokens of training text, 11,154 of validation; ")
    assert lines[1].startswith("step 0/30  validation 5.5")
    assert any(line.startswith("step 30/30  loss ") for line in lines)
    assert sum(" validation " in line for line in lines[1:]) == 4
    assert "sample at step 15:" in lines
    assert main(["train", "--resume", "run", "--steps", "40", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["step"] == 40 and figures["folder"] == "run" and figures["tokens"] == 10 * 64
    assert set(figures) == {
        "folder", "step", "loss", "validation_loss", "bits_per_byte", "validation_step", "tokens", "seconds",
        "interrupted", "signal",
    }  # fmt: skip


@pytest.mark.parametrize(
    "args, why",
    [
        ("", "no text was given"), ("none.txt", "none.txt"), ("play.txt --steps 0", "--steps"),
        ("play.txt --preset huge", "--preset"), ("play.txt --schedule step", "--schedule"),
        ("play.txt --precision f8", "--precision"), ("play.txt --init shakespeare --precision half", "--precision"),
        ("play.txt --lr 0", "lr is 0"), ("play.txt --warmup 50 --steps 50", "warmup"),
        ("play.txt --seed 4294967296", "seed"),
        ("play.txt --beta2 1", "beta2"), ("play.txt --n-embd 10", "not a multiple"),
        ("--resume none", "no such folder"),
        ("play.txt --init shakespeare --preset nano", "cannot be combined"),
        ("play.txt --tokenizer word", "tokenizer 'word'"),
        ("play.txt --init shakespeare --n-layer 2", "n_layer"), (".", "is a folder"),
        ("play.txt --n-layer 100000000", "n_layer is 100000000"),
        ("play.txt --device cpu", "--device"),
        ("play.txt --context 200000", "too few for a context"), ("play.txt --init nowhere/at/all", "neither a folder"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_in_one_line(args: str, why: str, capsys: Capture) -> None:
    try:
        code = main(["train", *args.split()])
    except SystemExit as end:
        code = int(str(end.code))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and why in err and err.count("\n") == 1
    assert [p.name for p in Path().iterdir()] == ["play.txt"]


def test_a_run_that_diverges_fails_with_1(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_trainer, "BREAK_AT", 25)
    assert main(["train", "play.txt", "--out", "run", "--steps", "30", *SHAPE, "--save-every", "10"]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "glgpt: error: step 25: the loss is nan" in err and "step 20 in run" in err


def test_an_overflow_in_halves_is_told(capsys: Capture) -> None:
    """Checks that a step repeated after an overflow is reported, and that a resumed run keeps its precision."""
    args = ["train", "play.txt", "--out", "run", "--steps", "6", *SHAPE, "--precision", "f16"]
    assert main(args) == 0
    said = "step 3/6  gradients overflowed once; repeated with a loss scale of 32768\n"
    assert capsys.readouterr().err.count(said) == 1
    assert main(["train", "--resume", "run", "--steps", "8"]) == 0
    assert json.loads(Path("run/train.json").read_text())["settings"]["precision"] == "f16"
    lines = fake_trainer.metrics("run")
    assert [line.get("loss_scale") for line in lines] == [None] + [32768] * 8
    assert [line["step"] for line in lines if "overflows" in line] == [3] and lines[3]["overflows"] == 1
    board, out = Board(io.StringIO()), io.StringIO()
    board.start(Start(Path("run"), GPT2Config(), settings_for("nano", None, {}), 1, 1, 1, {}, 0))
    board.step(Step(3, 1.0, 1.0, 1e-3, 0.0, 0.0, None, None, 512.0, 2))
    Console(file=out, width=120).print(board.draw())
    assert "step 3: gradients overflowed 2 times; repeated with a loss scale of 512" in out.getvalue()


@pytest.mark.slow
def test_a_prompt_is_never_taken_for_a_model(capsys: Capture) -> None:
    shutil.copytree(embedded_weights(), "run")
    for words, prompt in ((["run"], "run"), (["--model", "run"], "\n\n"), (["x" * 200], "x" * 200)):
        assert main(["generate", *words, "--tokens", "1", "--seed", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["prompt"] == prompt


# Output


def test_samples_cannot_steer_the_terminal() -> None:
    assert shown("\n\x1b[2J\tcaf\u00e9\r\nend\x07\n") == "\ufffd[2J    caf\u00e9\ufffd\nend\ufffd"


def test_clock_and_sparkline() -> None:
    assert (clock(59.6), clock(125), clock(3725)) == ("1:00", "2:05", "1:02:05")
    assert sparkline([], 5) == "" and sparkline([2.0, 2.0], 5) == "▁▁"
    assert sparkline([3.0, 2.0, 1.0, 0.0], 4) == "█▆▃▁" and len(sparkline([0.5] * 999, 60)) == 60
    assert sparkline([1.0, float("inf"), float("nan"), 0.0], 4) == "█▁"  # a diverged training


def test_the_panel_shows_all_figures() -> None:
    board, out = Board(io.StringIO()), io.StringIO()
    settings = settings_for("nano", None, {})
    board.progress("tokenising", 3, 10)
    Console(file=out, width=100).print(board.draw())
    assert "tokenising" in out.getvalue() and "30%" in out.getvalue()
    board.progress("tokenising", 10, 10)
    board.start(
        Start(Path("run"), GPT2Config(), settings, 834_304, 10, 5, {"weight": 50 << 20, "state": 34 << 20}, 1000)
    )
    board.step(Step(1204, 1.83, 0.81, 5.2e-4, 12_431.0, 48.2))
    board.validation(1000, 1.921, 2.771)
    board.sample(1000, "To be\x1b")
    board.save(1200)
    Console(file=out, width=100).print(board.draw())
    for text in (
        "step 1,204 of 2,000", "0:48 left", "1.8300", "5.20e-04", "0.81", "12,431", "84 MiB",
        "checkpoint at step 1,200",
        "1.9210 (2.771 bits/byte) at step 1,000", "sample at step 1,000", "To be\ufffd",
    ):  # fmt: skip
        assert text in out.getvalue(), text


def test_a_log_has_a_line_now_and_then() -> None:
    out = io.StringIO()
    with Log(out) as log:
        train(
            "play.txt",
            out="run",
            steps=100,
            n_layer=1,
            n_embd=8,
            n_head=1,
            context=16,
            eval_every=50,
            callbacks=log.callbacks(),
        )
    lines = out.getvalue().splitlines()
    steps = [int(found[1]) for line in lines if (found := re.match(r"step (\d+)/100  loss", line))]
    assert (steps[0], steps[-1]) == (1, 100) and len(steps) < 20


def test_a_log_has_a_line_for_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_dashboard, "TASK_AFTER", 0.05)
    monkeypatch.setattr(training_dashboard, "LINE_EVERY", 0.05)
    out = io.StringIO()
    with Log(out) as log:
        log.progress("quick", 0, 1)
        log.progress("quick", 1, 1)
        log.progress("saving", 0, 1)
        while not out.getvalue():
            time.sleep(0.01)
        log.progress("saving", 1, 1)
        for done in (0, 30, 60, 90, 100):
            log.progress("compiling", done, 100)
            time.sleep(0.06 if done == 30 else 0)
        log.progress("left behind", 0, 1)
    time.sleep(0.1)
    assert out.getvalue().splitlines() == ["saving…", "compiling: 60%"]


def test_memory_and_time_are_told_before_anything_is_allocated() -> None:
    plan = Plan(Recipe(2, 16), {"weight": 0, "state": 3 << 20, "input": 0, "scratch": 2 << 20}, 0.0456)
    out, told = io.StringIO(), "5 MiB of textures, 3 for parameters, gradients and moments and 2 for batches of 2 x 16"
    Log(out).plan(plan)
    board = Board(io.StringIO())
    board.plan(plan)
    for line in (out.getvalue(), " ".join(board._console.file.getvalue().split())):  # type: ignore[attr-defined]
        assert f"training takes {told} tokens; a step takes about 0.046 s" in line
    assert "a step takes about 1,234 s," in planning(replace(plan, step_s=1234.4))


def test_training_with_too_many_textures_is_refused(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "glgpt.training.trainer", trainer)
    args = ["train", "play.txt", "--out", "run", "--device", "software", *SHAPE, "--max-texture-memory"]
    assert main([*args, "100kB"]) == 2
    error = capsys.readouterr().err
    assert "training needs 0 MiB of textures" in error and "more than the 0 MiB of --max-texture-memory" in error
    assert not Path("run").exists()


# Presets and schedules


def test_presets_have_the_parameters_that_are_announced() -> None:
    assert set(PRESETS) == {"nano", "tiny", "small", "medium", "large", "gpt2"}
    announced = dict(re.findall(r"(\w+) \(([\d.]+) M", SIZES))
    table = {
        cells[0].strip("` "): cells for line in DOCS.read_text().splitlines() if len(cells := line[1:].split("|")) > 8
    }
    for name, preset in PRESETS.items():
        settings = settings_for(name, None, {})
        count = settings.model_config(vocabulary(preset.tokenizer)).parameter_count
        assert abs(count / 1e6 - float(announced[name])) <= (0.05 if count < 1e7 else 0.5)
        row = [cell.strip("` ") for cell in table[name]]
        said = [preset.n_layer, preset.n_head, preset.n_embd, preset.context, preset.tokenizer, preset.batch]
        assert row[1:7] == [str(value) for value in said]
        assert row[7] == f"{preset.lr:g}" and row[8] == f"{preset.steps:,}" and row[9] == f"{count:,}"


def test_nano_is_nanogpts_shape() -> None:
    s = settings_for("nano", None, {})
    assert (s.n_layer, s.n_head, s.n_embd, s.context, s.batch, s.steps) == (4, 4, 128, 64, 12, 2000)
    assert (s.lr, s.min_lr, s.warmup, s.beta2, s.dropout, s.schedule) == (3e-3, 3e-3 / 10, 100, 0.99, 0.0, "cosine")


@pytest.mark.parametrize(
    "schedule, middle, last", [("cosine", 1.65e-3, 3e-4), ("linear", 1.65e-3, 3e-4), ("constant", 3e-3, 3e-3)]
)
def test_the_learning_rate_rises_and_falls(schedule: str, middle: float, last: float) -> None:
    s = settings_for("nano", None, {"schedule": schedule})
    assert [s.lr_at(step) for step in (1, 50, 100)] == pytest.approx([3e-5, 1.5e-3, 3e-3])
    assert s.lr_at(1050) == pytest.approx(middle) and s.lr_at(2000) == pytest.approx(last)
    rates = [s.lr_at(step) for step in range(100, 2001)]
    assert rates == sorted(rates, reverse=True)
    assert settings_for("nano", None, {"warmup": 0}).lr_at(1) == pytest.approx(3e-3, rel=1e-5)


def test_a_quarter_of_the_cosine() -> None:
    s = settings_for("nano", None, {"lr": 1.0, "min_lr": 0.0, "warmup": 0, "steps": 400})
    assert s.lr_at(100) == pytest.approx(0.5 + 0.5 * 0.5**0.5)


def test_the_fake_is_in_place() -> None:
    assert sys.modules["glgpt.training.trainer"] is fake_trainer and len(PLAY) > 100_000
