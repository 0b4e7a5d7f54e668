"""Training: against torch's golden, parts and recomputation, dropout, what is saved, what is refused, and memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference as ref
from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.gl.device import Device
from glgpt.gl.player import Player
from glgpt.model import GPT2
from glgpt.models.config import GPT2Config
from glgpt.trainer import LATE, Trainer

Array = NDArray[Any]
Arrays = dict[str, Array]
DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")
CONFIG = GPT2Config(vocab_size=23, n_positions=10, n_embd=12, n_layer=2, n_head=2)  # heads padded from 6 to 8
TINY = GPT2Config(vocab_size=7, n_positions=4, n_embd=4, n_layer=1, n_head=1, n_inner=8)
BATCH, CONTEXT = 2, 9


def trainer(model: GPT2Config | Path = CONFIG, **options: Any) -> Trainer:
    return Trainer(model, **({"batch": BATCH, "context": CONTEXT, "device": DEVICE, "kernel": "4x4"} | options))


def examples(
    rows: int = BATCH, seed: int = 0, config: GPT2Config = CONFIG, context: int = CONTEXT
) -> tuple[Array, Array]:
    """Inputs and targets."""
    x, y = np.random.default_rng(seed).integers(0, config.vocab_size, (2, rows, context))
    return x, y


def gradients(*batch: Array, **options: Any) -> Arrays:
    """Those of one step from the same fresh weights."""
    with trainer(**options) as t:
        t.step(*batch)
        return t.gradients()


def apart(a: Array, b: Array) -> float:
    """The distance, relative by norm."""
    return float(np.linalg.norm(a.astype(float) - b) / max(np.linalg.norm(b), 1e-30))


def same(a: Arrays, b: Arrays) -> bool:
    """Whether all bits are equal."""
    return list(a) == list(b) and all(np.array_equal(a[name], b[name], equal_nan=True) for name in a)


# Right


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": "4x4"},
        pytest.param({"kernel": "4x8", "storage": "uint", "recompute": True}, marks=pytest.mark.slow),
        pytest.param({"kernel": "8x4", "batch": 1, "accumulate": 3, "fetch": "texelFetch"}, marks=pytest.mark.slow),
    ],
    ids=lambda options: options["kernel"],
)
def test_ten_steps_are_torchs(goldens: Path, options: dict[str, Any]) -> None:
    """A gradient, the clipping or the step of the optimizer goes another way than torch's in float64.

    The gradient of attention's key bias is zero but for rounding, since a softmax knows no shift, and AdamW turns such
    noise into whole steps. But by the same reason those entries change no loss, and in the norm of the gradient of all
    three biases together they weigh nothing: so neither the losses nor the gradients here need an exception.
    """
    golden = np.load(goldens / "training/training.npz")
    s = {name.removeprefix("setting."): float(golden[name]) for name in golden if name.startswith("setting.")}
    betas, shared = (s["beta1"], s["beta2"]), {name: s[name] for name in ("lr", "eps", "weight_decay", "clip")}
    inputs, targets = golden["inputs"], golden["targets"]
    sizes = {"batch": inputs.shape[1], "context": inputs.shape[2]} | options
    with GPT2.from_pretrained(goldens / "training", device=DEVICE) as model:
        ours = np.stack([model.logits(ids.tolist()) for ids in inputs[0].astype(int)])
    ref.within(ours, golden["logits"], 2e-4, 1e-5, "logits")
    with trainer(goldens / "training", betas=betas, **shared, **sizes) as t:
        results = t.submit(inputs[0], targets[0])
        for name, found in t.gradients().items():
            flat, wanted = found.flatten(), golden[f"slice.{name}"]
            norm, step = float(golden[f"norm.{name}"]), -(-flat.size // 16)
            assert abs(np.linalg.norm(flat.astype(float)) - norm) <= 1e-4 * norm, name
            # A slice of a gradient is held to the whole one's size: some values are small by cancellation.
            assert np.linalg.norm(flat[::step] - wanted) <= 1e-4 * norm, name
        for x, y in zip(inputs[1:], targets[1:], strict=True):
            results += t.submit(x, y)
        results += t.drain()
    assert [r.step for r in results] == list(range(1, 11))
    assert np.abs(np.array([r.loss for r in results]) - golden["losses"]).max() <= 1e-4
    assert np.abs(np.array([r.grad_norm for r in results]) / golden["norms"] - 1).max() <= 1e-4


@pytest.mark.parametrize("recompute", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_parts_make_one_batch(recompute: bool) -> None:
    """Accumulated parts count twice, or the second time the gradients of a step begin with those of the last."""
    x, y = examples(6)
    found = []
    for options in ({"batch": 6}, {"batch": 2, "accumulate": 3, "recompute": recompute}):
        with trainer(weight_decay=0.0, **options) as t:
            losses = [t.step(x, y) for _ in range(2)]
            found.append((losses, t.gradients()))
    assert np.allclose(found[0][0], found[1][0], rtol=1e-6)
    for name, whole in found[0][1].items():
        assert apart(found[1][1][name], whole) < 1e-4, name


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputing_changes_no_bit(dropout: float) -> None:
    """What is recomputed is not what was computed: another mask, or a fusion that rounds otherwise."""
    options = {"dropout": dropout, "clip": None}
    assert same(gradients(*examples(), **options), gradients(*examples(), recompute=True, **options))


def test_targets_below_zero_count_nothing() -> None:
    """A padded target moves the loss."""
    x, y = examples()
    with trainer() as t:
        by_row = [t.evaluate(x[i : i + 1], y[i : i + 1]) for i in range(2)]
        both = t.evaluate(x, y)
        y[1, 3:] = -1
        some = t.evaluate(x, y)
        assert t.evaluate(x[1:], y[1:]) == pytest.approx((some * 12 - by_row[0] * 9) / 3, rel=1e-5)
    assert both == pytest.approx(sum(by_row) / 2, rel=1e-6)


# Dropout


def dropped(t: Trainer, step: int, part: int = 0, seed: int = 0) -> Array:
    """The loss of a batch under the masks of a step, without taking it: forward and gradients only."""
    x, y = examples()
    t._upload(x, y, train=True)
    t.player.play("backward", pos=0, row=part, step=step, seed=seed)
    return t.player.read("losses")[0, part, 0, :1].copy()


def test_every_seed_step_and_part_has_its_mask_and_evaluation_none() -> None:
    """Two steps, or all parts of one, drop the same values; or an evaluation drops."""
    with trainer(dropout=0.2) as t, trainer() as plain:
        places = [{"step": 1}, {"step": 2}, {"step": 1, "part": 1}, {"step": 1, "seed": 1}]
        losses = [float(dropped(t, **place)[0]) for place in places]
        assert len(set(losses)) == len(places)
        assert [float(dropped(t, **place)[0]) for place in places] == losses
        assert t.evaluate(*examples()) == plain.evaluate(*examples())
        assert float(dropped(plain, 1)[0]) not in losses


def test_dropout_keeps_the_expected_gradient() -> None:
    """Kept values are not scaled up, or the backward pass drops others than the forward pass.

    With one block of little weights the loss is near linear in what is dropped: over many masks the mean of the head's
    gradient is near that without dropout, and one mask's is not.
    """
    config = GPT2Config(vocab_size=23, n_positions=10, n_embd=12, n_layer=1, n_head=2, tie_word_embeddings=False)
    name, found = "h.0.mlp.c_proj.bias", []
    with trainer(config) as plain, trainer(config, dropout=0.1) as t:
        dropped(plain, 1)
        whole = plain.gradients()[name]
        for step in range(150):
            dropped(t, step)
            found.append(t.gradients()[name])
    assert apart(np.mean(found, axis=0), whole) < 0.06 < 0.12 < np.median([apart(one, whole) for one in found])
