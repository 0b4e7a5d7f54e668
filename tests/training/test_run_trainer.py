"""Tests that the trainer and the fake trainer of other tests behave as `RunTrainer` requires."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fake_trainer
from helpers.tiny_trainer import BATCH, CONFIG, CONTEXT, DEVICE
from numpy.typing import NDArray

from glgpt.training.events import RunTrainer, StepResult
from glgpt.training.trainer import Trainer

Ids = NDArray[Any]
Make = Callable[..., RunTrainer]
SETTINGS = {"batch": BATCH, "context": CONTEXT, "seed": 1, "device": DEVICE}
KINDS: dict[str, type[RunTrainer]] = {"real": Trainer, "fake": fake_trainer.Trainer}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> type[RunTrainer]:
    return KINDS[request.param]


@pytest.fixture
def make(kind: type[RunTrainer]) -> Iterator[Make]:
    """Yields make(**settings), which returns a small trainer. The trainers are closed after the test."""
    opened: list[RunTrainer] = []

    def start(**settings: Any) -> RunTrainer:
        opened.append(kind(CONFIG, **SETTINGS | ({"kernel": "4x4"} if kind is Trainer else {}) | settings))
        return opened[-1]

    yield start
    for trainer in opened:
        trainer.close()


def windows(seed: int = 0, rows: int = BATCH) -> tuple[Ids, Ids]:
    """Returns rows of a random text of five different tokens, and the same rows one token later."""
    text = np.random.default_rng(seed).integers(0, 5, (rows, CONTEXT + 1))
    return text[:, :-1], text[:, 1:]


def trained(trainer: RunTrainer, steps: int, first: int = 0) -> list[StepResult]:
    results: list[StepResult] = []
    for step in range(first, first + steps):
        results += trainer.submit(*windows(step), lr=1e-2)
    return results + trainer.drain()


def test_results_arrive_late_and_in_order(make: Make) -> None:
    late, trainer = fake_trainer.LATE, make()
    arrived = [trainer.submit(*windows(step), lr=1e-2) for step in range(late + 3)]
    assert trainer.steps_done == late + 3
    assert [len(results) for results in arrived] == [0] * late + [1] * 3
    results = [*itertools.chain(*arrived), *trainer.drain()]
    assert [result.step for result in results] == list(range(1, late + 4))
    assert trainer.drain() == []
    for result in results:
        assert math.isfinite(result.loss) and result.grad_norm > 0
        assert (result.loss_scale, result.overflows) == (None, 0)


def test_it_starts_without_knowledge_and_learns(make: Make) -> None:
    trainer = make()
    assert (trainer.config.vocab_size, trainer.steps_done) == (CONFIG.vocab_size, 0)
    before = trainer.evaluate(*windows(9))
    assert before == pytest.approx(math.log(CONFIG.vocab_size), abs=0.1)
    first, *_, last = trained(trainer, 20)
    assert first.loss == pytest.approx(before, abs=0.1) and last.loss < first.loss - 0.2
    assert trainer.evaluate(*windows(9)) < before - 0.2
    assert trainer.not_finite() is None


def test_an_evaluation_changes_nothing(make: Make) -> None:
    one, other = make(), make()
    trained(one, 2)
    trained(other, 2)
    assert one.evaluate(*windows(7, rows=3)) == one.evaluate(*windows(7, rows=3))
    assert trained(one, 2, first=2) == trained(other, 2, first=2)


def test_the_seed_decides_the_parameters(make: Make) -> None:
    losses = [trained(make(seed=seed), 1)[0].loss for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]


def test_samples_are_drawn_with_their_seed(make: Make) -> None:
    trainer = make()
    ids = [list(trainer.generate_ids([1, 2], 7, temperature=0.8, seed=seed)) for seed in (1, 1, 2)]
    assert ids[0] == ids[1] != ids[2]
    assert all(len(sample) == 7 and set(sample) <= set(range(CONFIG.vocab_size)) for sample in ids)


def test_f16_reports_its_loss_scale(make: Make) -> None:
    for result in trained(make(precision="f16"), 4):
        assert result.loss_scale and result.loss_scale > 1 and result.overflows >= 0


def test_it_resumes_from_its_files_as_if_never_stopped(kind: type[RunTrainer], make: Make, tmp_path: Path) -> None:
    trainer = make()
    trained(trainer, 3)
    trainer.save(tmp_path, eos=5)
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 5
    with kind.load(tmp_path, batch=BATCH, device=DEVICE) as resumed:
        assert resumed.steps_done == 3 and resumed.config == trainer.config
        assert dict(resumed.memory) == dict(trainer.memory) and sum(resumed.memory.values()) > 0
        assert trained(resumed, 3, first=3) == trained(trainer, 3, first=3)
