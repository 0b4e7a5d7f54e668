"""A numpy replacement for `glgpt.training.trainer` that learns how often each token occurs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from glgpt import models
from glgpt.checkpoint.opening import Checkpoint
from glgpt.models.spec import ModelConfig
from glgpt.system.files import written_whole
from glgpt.training import loop
from glgpt.training.events import RunTrainer, StepResult

LATE = 4  # number of steps by which results are late, as in the real trainer
OVERFLOW_AT = 3  # the step that is repeated in f16
BREAK_AT = int(os.environ.get("FAKE_BREAK_AT", "0"))  # the step whose loss is NaN (0: none)
SECONDS = float(os.environ.get("FAKE_SECONDS", "0"))  # duration of a step

BEGUN: list[float] = []  # start times of the steps of all trainers


class Trainer:
    """Implements `RunTrainer`. tests/training/test_run_trainer.py checks this class in the same way as the real one."""

    def __init__(
        self,
        model: ModelConfig | str | Path,
        *,
        batch: int,
        context: int | None = None,
        accumulate: int = 1,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        clip: float | None = 1.0,
        dropout: float = 0.0,
        recompute: bool = False,
        precision: str = "f32",
        seed: int = 0,
        device: str | int = "auto",
        max_texture_memory: int = 0,
        on_plan: object = None,
        on_progress: object = None,
    ) -> None:
        self.config: ModelConfig = model if isinstance(model, ModelConfig) else Checkpoint.open(model).config
        self.batch, self.context, self.accumulate = batch, context or self.config.n_positions, accumulate
        self.steps_done, self.seed, self.closed, self.precision = 0, seed, False, precision
        self.logits = np.random.default_rng(seed).standard_normal(self.config.vocab_size) * 0.02
        self.moment = np.zeros_like(self.logits)
        self.memory = {"weight": self.logits.nbytes, "state": 2 * self.logits.nbytes}
        self._late: list[StepResult] = []

    def _loss(self, targets: np.ndarray) -> tuple[float, np.ndarray]:
        p = np.exp(self.logits - self.logits.max())
        p /= p.sum()
        share = np.bincount(targets.ravel(), minlength=len(p)) / targets.size
        return float(-(share * np.log(p)).sum()), p - share

    def submit(self, inputs: np.ndarray, targets: np.ndarray, lr: float | None = None) -> list[StepResult]:
        assert inputs.shape == targets.shape == (self.accumulate * self.batch, self.context)
        assert (inputs[:, 1:] == targets[:, :-1]).all() and not self.closed
        BEGUN.append(time.perf_counter())
        time.sleep(SECONDS)
        loss, gradient = self._loss(targets)
        self.moment = 0.9 * self.moment + gradient
        self.logits = self.logits - (lr or 0.0) * 100 * self.moment
        self.steps_done += 1
        if self.steps_done == BREAK_AT:
            loss = float("nan")
        halves = (2.0**15, int(self.steps_done == OVERFLOW_AT)) if self.precision == "f16" else (None, 0)
        self._late.append(StepResult(self.steps_done, loss, float(np.linalg.norm(gradient)), *halves))
        return [self._late.pop(0)] if len(self._late) > LATE else []

    def drain(self) -> list[StepResult]:
        results, self._late = self._late, []
        return results

    def evaluate(self, inputs: np.ndarray, targets: np.ndarray) -> float:
        assert inputs.shape == targets.shape and inputs.shape[1] == self.context
        return self._loss(targets)[0]

    def generate_ids(self, ids: Sequence[int], tokens: int, *, temperature: float, seed: int) -> Iterator[int]:
        assert len(ids) + tokens <= self.context + 1
        p = np.exp(self.logits / temperature)
        yield from np.random.default_rng(seed).choice(len(p), tokens, p=p / p.sum()).tolist()

    def not_finite(self) -> str | None:
        return "h.0.mlp.c_fc.weight" if 0 < BREAK_AT <= self.steps_done else None

    def save(
        self,
        folder: str | Path,
        eos: int | None = None,
        progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        progress(0, 1)
        fields = self.config.fields()
        with written_whole(Path(folder) / "config.json") as file:
            file.write(json.dumps(fields | {"bos_token_id": eos, "eos_token_id": eos}).encode())
        with written_whole(Path(folder) / "state.safetensors") as file:
            tensors = {"logits": self.logits, "moment": self.moment, "step": np.array([self.steps_done, self.seed])}
            file.write(save(tensors, {"config": json.dumps(fields), "context": str(self.context)}))
        progress(1, 1)

    @classmethod
    def load(cls, folder: str | Path, **overrides: Any) -> Trainer:
        data = (Path(folder) / "state.safetensors").read_bytes()
        about = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        state = load(data)
        step, seed = state["step"].tolist()
        options = {"context": int(about["context"]), "seed": seed} | overrides
        trainer = cls(models.from_fields(json.loads(about["config"])), **options)
        trainer.logits, trainer.moment, trainer.steps_done = state["logits"], state["moment"], step
        return trainer

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Shared by the tests of training runs

CHECKED: type[RunTrainer] = Trainer  # mypy compares all methods
PLAY = (Path(__file__).parents[1] / "data/shakespeare-validation.txt").read_text()
SMALL: dict[str, Any] = {
    "steps": 40,
    "n_layer": 1,
    "n_embd": 8,
    "n_head": 1,
    "context": 16,
    "batch": 4,
    "device": "software",
}
OFTEN: dict[str, Any] = {
    "eval_every": 10,
    "sample_every": 20,
    "save_every": 10,
    "sample_tokens": 30,
    "eval_tokens": 640,
}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Changes to a folder with a play in it, installs this module as the trainer, and leaves out loss curves."""
    monkeypatch.setitem(sys.modules, "glgpt.training.trainer", sys.modules[__name__])
    monkeypatch.setattr("glgpt.training.loop.loss_curve", draw_nothing)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "play.txt").write_text(PLAY)


def draw_nothing(training: np.ndarray, validation: np.ndarray, title: str, path: Path) -> None:
    """Creates an empty file, since drawing a loss curve takes longer than the steps of a run with this trainer."""
    path.touch()


def metrics(run: str | Path) -> list[dict[str, Any]]:
    """Returns the metrics of a run, without the fields that depend on time."""
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "tokens_per_s"} for line in lines]


if __name__ == "__main__":  # `python fake_trainer.py train …` runs the command with this trainer
    sys.modules["glgpt.training.trainer"] = sys.modules["__main__"]
    vars(loop)["loss_curve"] = draw_nothing
    from glgpt.__main__ import entry, leave
    from glgpt.system.signals import NUMBERS

    for number in NUMBERS:  # the first thing that `entry` does
        signal.signal(number, leave)
    if mark := os.environ.get("FAKE_STARTED"):  # for a test that waits until the command runs
        Path(mark).touch()
    sys.exit(entry())
