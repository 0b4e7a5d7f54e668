"""Tests, with a fake trainer, that a run stopped at any moment continues as if it had not been stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fake_trainer
from helpers.fake_trainer import OFTEN, PLAY, SMALL, fake, metrics  # noqa: F401
from helpers.waiting import until
from safetensors.numpy import load_file

import glgpt
from glgpt.errors import GlgptError
from glgpt.training.events import DivergedError, Step, TrainingCallbacks
from glgpt.training.loss_scale import OverflowedError
from glgpt.training.run_folder import RunFolder


def state(run: str) -> dict[str, list[float]]:
    """Returns the values of a checkpoint's tensors."""
    return {name: array.tolist() for name, array in load_file(f"{run}/state.safetensors").items()}


# Stopping and resuming


@pytest.mark.parametrize("step", [1, 10, 17, 35])
def test_a_resumed_run_is_as_if_never_stopped(step: int) -> None:
    glgpt.train("play.txt", out="whole", **SMALL, **OFTEN)

    def stop(at: Step) -> None:
        if at.step == step:
            signal.raise_signal(signal.SIGINT)

    before = glgpt.train("play.txt", out="parts", callbacks=TrainingCallbacks(on_step=stop), **SMALL, **OFTEN)
    assert before.interrupted and step <= before.step <= step + 1 + fake_trainer.LATE
    with Path("parts/metrics.jsonl").open("a") as file:  # as a killed run leaves it: a step that will be repeated
        file.write(json.dumps({"step": before.step + 1, "loss": 9.0}) + "\n")
    after = glgpt.train(resume="parts")
    assert (after.step, after.interrupted) == (40, False)
    assert state("parts") == state("whole")
    assert metrics("parts") == metrics("whole")  # including the validation that was interrupted
    samples = [{p.name: p.read_bytes() for p in Path(run, "samples").iterdir()} for run in ("parts", "whole")]
    assert samples[0] == samples[1]


def command(*args: str, **environment: str) -> subprocess.Popen[str]:
    """Starts `glgpt` with the fake trainer as a separate process."""
    return subprocess.Popen(
        [sys.executable, fake_trainer.__file__, *args],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


FEW = "--n-layer 1 --n-embd 8 --n-head 1 --context 16 --batch 4 --eval-tokens 320 --eval-every 30".split()


def train_args(out: str, steps: int) -> list[str]:
    return [
        "train",
        "play.txt",
        "--out",
        out,
        "--steps",
        str(steps),
        "--save-every",
        "10",
        "--sample-tokens",
        "20",
        *FEW,
    ]


@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_last_checkpoint() -> None:
    assert command(*train_args("whole", 120)).wait() == 0
    process, wait = command(*train_args("killed", 120), FAKE_SECONDS="0.01"), np.random.default_rng(1)
    kills = 0
    for _ in range(2):  # at random moments: in a step, a validation, a checkpoint, a line of the metrics
        until(lambda: Path("killed/state.safetensors").exists() or process.poll() is not None, 60)  # noqa: B023
        time.sleep(float(wait.uniform(0.1, 0.6)))
        process.kill()
        process.wait()
        kills += process.returncode == -signal.SIGKILL
        reached, noted_so_far = fake_trainer.Trainer.load("killed", batch=4).steps_done, Path("killed/metrics.jsonl")
        half = noted_so_far.read_text().rpartition("\n")[2]
        with noted_so_far.open("a") as file:  # a step that will be repeated, and an incomplete line
            file.write("\n" * bool(half) + json.dumps({"step": reached + 1, "loss": 9.0}) + '\n{"step": 9')
        (Path("killed") / ".state.safetensors.half").write_bytes(b"x")
        noted = [int(n) for n in re.findall(r'"step": (\d+),', Path("killed/metrics.jsonl").read_text())]
        assert reached % 10 == 0 and max(noted, default=0) - reached < 20
        process = command("train", "--resume", "killed", FAKE_SECONDS="0.01")
        until(lambda: not (Path("killed") / ".state.safetensors.half").exists() or process.poll() is not None, 60)  # noqa: B023
    assert process.wait() == 0, process.stderr and process.stderr.read()
    assert kills == 2
    assert state("killed") == state("whole")
    assert metrics("killed") == metrics("whole")
    assert not list(Path("killed").glob(".*"))


@pytest.mark.slow
def test_ctrl_c_writes_a_checkpoint_and_says_how_to_go_on() -> None:
    process = command(*train_args("my run", 5000), FAKE_SECONDS="0.01")
    until(lambda: Path("my run/metrics.jsonl").exists() and len(metrics("my run")) > 4, 60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "stopped; resume with: glgpt train --resume 'my run'" in out and "Traceback" not in err
    reached = fake_trainer.Trainer.load("my run", batch=4).steps_done
    assert reached == metrics("my run")[-1]["step"] and f"my run: {reached} steps" in out


@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_writes_a_checkpoint() -> None:
    terminal, end = os.openpty()
    process = subprocess.Popen(
        # a terminal that is closed sends SIGHUP only to the session that it controls
        ["setsid", "--ctty", sys.executable, fake_trainer.__file__, *train_args("run", 5000)],
        env=os.environ | {"FAKE_SECONDS": "0.01"},
        stdin=end,
        stdout=end,
        stderr=end,
    )
    os.close(end)
    until(lambda: os.read(terminal, 4096) and Path("run/metrics.jsonl").exists() and len(metrics("run")) > 4, 60)
    os.close(terminal)
    assert process.wait(timeout=30) == 129
    assert fake_trainer.Trainer.load("run", batch=4).steps_done == metrics("run")[-1]["step"] > 4


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_at_once() -> None:
    process = command(*train_args("run", 5000), FAKE_SECONDS="60")  # a step takes longer than the test waits
    until(lambda: Path("run/metrics.jsonl").exists(), 60)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in err and out == ""
    assert fake_trainer.Trainer.load("run", batch=4).steps_done == 0


def test_sigterm_before_the_first_step_leaves_nothing() -> None:
    """Fails if SIGTERM ends Python without clean-up, which leaves a hidden folder next to the run's folder."""
    Path("long.txt").write_text(PLAY * 20)
    process = command("train", "long.txt", "--out", "runs/new", "--tokenizer", "bpe:1024")
    until(lambda: list(Path("runs").glob(".new.*")), 60)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in err
    assert not Path("runs").exists()


def test_a_checkpoint_that_would_be_broken_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a step with a finite loss but broken parameters overwrites the last good checkpoint."""
    save = fake_trainer.Trainer.save

    def checked(trainer: fake_trainer.Trainer, *given: Any) -> None:
        if trainer.steps_done == 20:
            raise GlgptError("ln_f.bias holds a NaN or an infinity, so nothing was saved")
        save(trainer, *given)

    monkeypatch.setattr(fake_trainer.Trainer, "save", checked)
    with pytest.raises(DivergedError, match=r"^step 20: ln_f\.bias holds .* last good checkpoint is step 10 in run"):
        glgpt.train("play.txt", out="run", **SMALL, **OFTEN)
    assert fake_trainer.Trainer.load("run", batch=4).steps_done == 10


@pytest.mark.parametrize("steps", [8, 30])
def test_the_speed_is_right_from_the_second_step_on(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Fails if a short run seems twice as fast because results arrive late and the last ones arrive together."""
    monkeypatch.setattr(fake_trainer, "SECONDS", 0.02)
    monkeypatch.setattr(fake_trainer, "BEGUN", begun := [])
    seen: list[Step] = []
    glgpt.train(
        "play.txt",
        out="run",
        callbacks=TrainingCallbacks(on_step=seen.append),
        **(SMALL | {"steps": steps, "save_every": 0}),
    )
    taken = (begun[-1] - begun[0]) / (steps - 1)  # at least 0.02 s; more on a busy machine
    assert seen[-1].tokens_per_s > 4 * 16 / taken / 2
    assert all(step.tokens_per_s < 1.1 * 4 * 16 / 0.02 for step in seen)


def test_a_loss_that_is_not_finite_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_trainer, "BREAK_AT", 25)
    with pytest.raises(DivergedError) as caught:
        glgpt.train("play.txt", out="run", **SMALL, **OFTEN)
    message = str(caught.value)
    assert message.startswith("step 25: the loss is nan") and "h.0.mlp.c_fc.weight" in message
    assert "last good checkpoint is step 20 in run" in message
    assert metrics("run")[-1]["step"] == 25 and metrics("run")[-1]["loss"] is None
    monkeypatch.setattr(fake_trainer, "BREAK_AT", 0)
    before = json.loads(Path("run/train.json").read_text())["settings"]
    lower = before["min_lr"] / 10  # below the run's minimum rate
    assert glgpt.train(resume="run", lr=lower).step == 40
    after = json.loads(Path("run/train.json").read_text())["settings"]
    assert after["lr"] == lower and after["min_lr"] / lower == pytest.approx(before["min_lr"] / before["lr"])
    assert [line["step"] for line in metrics("run")] == list(range(41))


def test_gradients_that_fit_halves_with_no_scale_stop_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = fake_trainer.Trainer.submit

    def overflows(self: fake_trainer.Trainer, *args: Any) -> Any:
        if self.steps_done == 24:
            raise OverflowedError(25, "gradients overflow f16")
        return submit(self, *args)

    monkeypatch.setattr(fake_trainer.Trainer, "submit", overflows)
    with pytest.raises(DivergedError) as caught:
        glgpt.train("play.txt", out="run", precision="f16", **SMALL, **OFTEN)
    message = str(caught.value)
    assert message.startswith("step 25: gradients overflow f16; the last good checkpoint is step 20 in run: ")
    assert message.endswith("resume it with a lower --lr or --clip, or train with --precision f32")


def test_what_can_change_in_a_run_and_what_not() -> None:
    glgpt.train("play.txt", out="run", **SMALL, **OFTEN)
    for name, value in {
        "batch": 8,
        "seed": 1,
        "n_embd": 16,
        "tokenizer": "gpt2",
        "context": 8,
        "accumulate": 2,
        "precision": "f16",
    }.items():
        with pytest.raises(GlgptError, match=f"{name} cannot change in a run"):
            glgpt.train(resume="run", steps=50, **{name: value})
    with pytest.raises(GlgptError, match=r"has done its 40 steps; to continue, give more with --steps"):
        glgpt.train(resume="run")
    with pytest.raises(GlgptError, match="resume cannot be combined with out, preset or init"):
        glgpt.train(resume="run", preset="nano")
    assert glgpt.train(resume="run", steps=50).step == 50
    assert json.loads(Path("run/train.json").read_text())["settings"]["steps"] == 50
    assert [line["step"] for line in metrics("run")] == list(range(51))


def test_a_run_resumes_after_numbers_that_are_not_of_python() -> None:
    """Fails if train.json holds a value that a later resume refuses, such as 1 for True."""
    glgpt.train("play.txt", out="run", **SMALL)
    settings = {"recompute": 1, "device": np.int64(0)}
    assert glgpt.train(resume="run", steps=41, **settings).step == 41
    assert glgpt.train(resume="run", steps=42).step == 42
    assert json.loads(Path("run/train.json").read_text())["settings"]["recompute"] is True


def test_a_run_goes_on_with_its_own_text_only() -> None:
    glgpt.train("play.txt", out="run", **SMALL)
    glgpt.train(text=PLAY, out="said", **SMALL)
    shutil.move("play.txt", "moved.txt")
    with pytest.raises(FileNotFoundError):
        glgpt.train(resume="run", steps=50)
    Path("other.txt").write_text(PLAY + "x")
    with pytest.raises(GlgptError, match=r"other\.txt is not the text that run was trained on"):
        glgpt.train("other.txt", resume="run", steps=50)
    assert glgpt.train("moved.txt", resume="run", steps=50).step == 50
    with pytest.raises(GlgptError, match="give the same text again"):
        glgpt.train(resume="said", steps=50)
    assert glgpt.train(text=PLAY, resume="said", steps=50).step == 50


def test_one_process_at_a_time() -> None:
    glgpt.train("play.txt", out="run", **SMALL)
    with RunFolder(Path("run")), pytest.raises(GlgptError, match="run is being trained by another process"):
        glgpt.train(resume="run", steps=50)
    assert glgpt.train(resume="run", steps=50).step == 50


def test_what_is_no_run_is_not_resumed() -> None:
    Path("bare").mkdir()
    with pytest.raises(GlgptError, match=r"bare is not a training run: it has no train\.json"):
        glgpt.train(resume="bare")
    glgpt.train("play.txt", out="run", **SMALL)
    for damage in ("", "[]", "{}", '{"settings": {"x": 1}, "files": [], "vocab_size": 3, "data": ""}'):
        Path("run/train.json").write_text(damage)
        with pytest.raises(GlgptError, match=r"train\.json is damaged"):
            glgpt.train(resume="run")
