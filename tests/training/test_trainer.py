"""Tests training steps: equality with torch, micro-batches, recomputation, smaller steps, dropout and AdamW."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import reference as ref
from helpers import reference_training as more
from helpers.tiny_trainer import BATCH, CONFIG, CONTEXT, DEVICE, Array, Arrays, examples, same, trainer

from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.models.families.llama import LlamaConfig
from glgpt.program.kernel import KERNELS
from glgpt.program.spec import Limits
from glgpt.training.program import Recipe, training_program
from glgpt.training.textures import micro_batches
from glgpt.training.trainer import Trainer

LLAMA = LlamaConfig(23, 16, 24, 2, 4, 2, 30, None, 1e-4, 100.0, None, True)


def gradients(*batch: Array, **options: Any) -> Arrays:
    """Returns the gradients of one step from fresh weights, which are the same in each call."""
    with trainer(**options) as t:
        t.step(*batch)
        return t.gradients()


def apart(a: Array, b: Array) -> float:
    """Returns the norm of the difference, relative to the norm of b."""
    return float(np.linalg.norm(a.astype(float) - b) / max(np.linalg.norm(b), 1e-30))


# Correctness


@pytest.mark.slow
def test_logits_are_torchs(goldens: Path) -> None:
    golden = np.load(goldens / "training/training.npz")
    with LanguageModel.from_pretrained(goldens / "training", device=DEVICE) as model:
        ours = np.stack([model.logits(ids.tolist()) for ids in golden["inputs"][0].astype(int)])
    ref.within(ours, golden["logits"], 2e-4, 1e-5, "logits")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"kernel": "4x4"}, id="4x4", marks=pytest.mark.soak),
        pytest.param({"kernel": "4x8", "storage": "uint", "recompute": True, "batch": 1, "accumulate": 3}, id="4x8"),
    ],
)
def test_ten_steps_are_torchs(goldens: Path, options: dict[str, Any]) -> None:
    """Fails if a gradient, the clipping or the optimizer's step differs from torch's in float64.

    A softmax ignores shifts, so the gradient of attention's key bias is only rounding noise. AdamW divides a gradient
    by its size, so it still moves this bias by about the learning rate. The checks need no exception: the key bias
    does not change the loss, and its gradient is a small share of that of the whole bias (queries, keys and values).
    """
    golden = np.load(goldens / "training/training.npz")
    s = {name.removeprefix("setting."): float(golden[name]) for name in golden if name.startswith("setting.")}
    betas, shared = (s["beta1"], s["beta2"]), {name: s[name] for name in ("lr", "eps", "weight_decay", "clip")}
    inputs, targets = golden["inputs"], golden["targets"]
    sizes = {"batch": inputs.shape[1], "context": inputs.shape[2]} | options
    with trainer(goldens / "training", betas=betas, **shared, **sizes) as t:
        results = t.submit(inputs[0], targets[0])
        for name, found in t.gradients().items():
            flat, wanted = found.flatten(), golden[f"slice.{name}"]
            norm, step = float(golden[f"norm.{name}"]), -(-flat.size // 16)
            assert abs(np.linalg.norm(flat.astype(float)) - norm) <= 1e-4 * norm, name
            # The tolerance of the sampled values is relative to the whole gradient: some are small by cancellation.
            assert np.linalg.norm(flat[::step] - wanted) <= 1e-4 * norm, name
        for x, y in zip(inputs[1:], targets[1:], strict=True):
            results += t.submit(x, y)
        results += t.drain()
    assert [r.step for r in results] == list(range(1, 11))
    assert np.abs(np.array([r.loss for r in results]) - golden["losses"]).max() <= 1e-4
    assert np.abs(np.array([r.grad_norm for r in results]) / golden["norms"] - 1).max() <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [False, True])
def test_parts_make_one_batch(recompute: bool) -> None:
    """Fails if micro-batches count twice, or the gradients of a step include those of the previous step."""
    x, y = examples(4)
    found = []
    for options in ({"batch": 4}, {"batch": 2, "accumulate": 2, "recompute": recompute}):
        with trainer(weight_decay=0.0, **options) as t:
            losses = [t.step(x, y) for _ in range(2)]
            found.append((losses, t.gradients()))
    assert np.allclose(found[0][0], found[1][0], rtol=1e-6)
    for name, whole in found[0][1].items():
        assert apart(found[1][1][name], whole) < 1e-4, name


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputing_changes_no_bit(dropout: float) -> None:
    """Fails if recomputed values differ, for example by another dropout mask or other rounding in a fused pass."""
    options = {"dropout": dropout, "clip": None}
    assert same(gradients(*examples(), **options), gradients(*examples(), recompute=True, **options))


def test_targets_below_zero_count_nothing() -> None:
    x, y = examples()
    with trainer() as t:
        by_row = [t.evaluate(x[i : i + 1], y[i : i + 1]) for i in range(2)]
        both = t.evaluate(x, y)
        y[1, 3:] = -1
        some = t.evaluate(x, y)
        assert t.evaluate(x[1:], y[1:]) == pytest.approx((some * 12 - by_row[0] * 9) / 3, rel=1e-5)
    assert both == pytest.approx(sum(by_row) / 2, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("second", [4, 0], ids=["some", "none"])
@pytest.mark.parametrize("options", [{"batch": 4}, {"batch": 2, "accumulate": 2}], ids=["one", "parts"])
def test_a_step_is_on_the_mean_over_the_targets_that_count(options: dict[str, int], second: int) -> None:
    """Fails if the mean includes positions without a target, or is the mean of the micro-batches' means."""
    x, y = examples(4)
    y[0, 5:] = y[1, ::2] = y[2:, second:] = -1
    with trainer(**options) as t:
        weights = {name: value.astype(float) for name, value in t.parameters().items()}
        (result,) = [*t.submit(x, y), *t.drain()]
        t.evaluate(x[:3], y[:3])  # an evaluation with another number of targets
        found = {name: g.astype(float) for name, g in t.gradients().items()}
    assert result.loss == pytest.approx(more.mean_loss(CONFIG, weights, x, y), rel=1e-6)
    norm = more.gradient_norm(list(found.values()), 0.0)[0]
    assert result.grad_norm == pytest.approx(norm, rel=1e-5)
    rng = np.random.default_rng(1)
    for direction in (found, {name: norm * rng.standard_normal(g.shape) / 50 for name, g in found.items()}):
        h = 1e-4 / norm
        after, before = ({name: w + s * h * direction[name] for name, w in weights.items()} for s in (1, -1))
        slope = (more.mean_loss(CONFIG, after, x, y) - more.mean_loss(CONFIG, before, x, y)) / (2 * h)
        along = sum(float((found[name] * direction[name]).sum()) for name in found)
        assert abs(along - slope) <= 1e-5 * norm**2


def test_a_closed_trainer_says_so(tmp_path: Path) -> None:
    x, y = examples()
    with trainer() as t:
        t.step(x, y)
        left = t.generate_ids([1, 2], 3, temperature=0)
        assert next(left) >= 0 and next(left) >= 0  # the device already computes the third
    last = partial(next, left)
    for use in (
        lambda: t.step(x, y),
        t.parameters,
        t.gradients,
        lambda: t.evaluate(x, y),
        lambda: t.save(tmp_path),
        last,
    ):
        with pytest.raises(GlgptError, match="closed"):
            use()
    assert list(tmp_path.iterdir()) == []


def test_a_step_without_targets_is_none() -> None:
    """Fails if a step without targets has a loss or gradient that is not finite, or moves a parameter."""
    x, y = examples(2 * BATCH)
    with trainer(weight_decay=0.0, accumulate=2) as t:
        before = t.parameters()
        (result,) = [*t.submit(x, 0 * y - 1), *t.drain()]
        assert (result.loss, result.grad_norm, t.not_finite()) == (0.0, 0.0, None)
        assert not any(g.any() for g in t.gradients().values()) and same(t.parameters(), before)
        assert t.evaluate(x, 0 * y - 1) == 0.0
        assert np.isfinite(t.step(x, y)) and not same(t.parameters(), before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "options"),
    [
        pytest.param(CONFIG, {"batch": 3}, id="gpt2-one", marks=pytest.mark.soak),
        pytest.param(LLAMA, {"batch": 2, "accumulate": 3}, id="llama-parts"),
        pytest.param(CONFIG, {"batch": 2, "accumulate": 3}, id="gpt2-parts", marks=pytest.mark.soak),
        pytest.param(LLAMA, {"batch": 3}, id="llama-one", marks=pytest.mark.soak),
    ],
)
def test_a_smaller_step_is_as_if_compiled_for_it(model: Any, options: dict[str, int]) -> None:
    """Fails if the padding of a smaller step is attended to, predicted, or counted in the mean.

    Where a gradient is zero, rounding alone lets AdamW move a parameter by about the learning rate. So the test
    compares the losses of the second step, not the parameters.
    """
    batches = [examples(2, i, model, 4) for i in range(2)]
    batches[0][1][1, 2:] = -1
    found = []
    for shape in ({"batch": 2, "context": 4}, {"context": 9, **options}):
        with trainer(model, **shape) as t:
            results = t.submit(*batches[0])
            gradients = t.gradients()
            found.append(([*results, *t.submit(*batches[1]), *t.drain()], gradients, t.evaluate(*batches[0])))
    (results, gradients, judged), (others, masked, other) = found
    for a, b in zip(results, others, strict=True):
        assert (a.step, a.loss, a.grad_norm) == pytest.approx((b.step, b.loss, b.grad_norm), rel=1e-5)
    assert judged == pytest.approx(other, rel=1e-5)
    whole = float(np.sqrt(sum(np.square(g.astype(float)).sum() for g in gradients.values())))
    for name, gradient in gradients.items():
        assert np.linalg.norm(masked[name].astype(float) - gradient) <= 1e-5 * whole, name
    if "wpe.weight" in masked:
        assert not masked["wpe.weight"][4:].any() and masked["wpe.weight"][:4].all()


def test_a_smaller_step_is_padded_with_its_own_ids() -> None:
    """Fails if padding has a token that the batch lacks: this token's values may overflow, and infinity * 0 is NaN."""
    inputs = np.array([[5, 6, 7], [7, 6, 5]])
    ((x, y),) = micro_batches(inputs, inputs, 1, 3, 4)
    assert x.tolist() == [[5, 6, 7, 7], [7, 6, 5, 5], [7, 6, 5, 5]]
    assert y.tolist() == [[5, 6, 7, -1], [7, 6, 5, -1], [-1, -1, -1, -1]]


# Dropout


def dropped(t: Trainer, step: int, part: int = 0, seed: int = 0) -> Array:
    """Returns the loss of a batch with the dropout masks of a step. Computes gradients and changes no parameter."""
    x, y = examples()
    t.textures.upload(x, y, train=True)
    t.player.play("backward", pos=0, row=part, step=step, seed=seed)
    return t.player.read("losses")[0, part, 0, :1].copy()


def test_every_seed_step_and_part_has_its_mask_and_evaluation_none() -> None:
    """Fails if different steps, micro-batches or seeds drop the same values, or if an evaluation drops any."""
    with trainer(dropout=0.2) as t, trainer() as plain:
        places = [{"step": 1}, {"step": 2}, {"step": 1, "part": 1}, {"step": 1, "seed": 1}]
        losses = [float(dropped(t, **place)[0]) for place in places]
        assert len(set(losses)) == len(places)
        assert [float(dropped(t, **place)[0]) for place in places] == losses
        assert t.evaluate(*examples()) == plain.evaluate(*examples())
        assert float(dropped(plain, 1)[0]) not in losses


def test_every_place_that_drops_has_a_mask_of_its_own() -> None:
    """Fails if two places of a block drop the same values, or the backward pass uses another place's mask."""
    program = training_program(CONFIG, Recipe(BATCH, CONTEXT, dropout=0.1), Limits(), KERNELS["4x4"])
    texts = [program.shaders[p.shader] for p in program.entries["backward"].passes if p.shader.startswith("dropout-")]
    sites = Counter(int(site) for text in texts for site in re.findall(r"#define SITE (\d+)", text))
    assert sites == dict.fromkeys(range(1 + 3 * CONFIG.n_layer), 2)  # once forward and once backward


def test_one_mask_serves_both_ways() -> None:
    """Fails if the backward pass drops other values than the forward pass: the gradient is then not the slope."""
    with trainer(dropout=0.3) as t:
        weights = t.parameters()
        dropped(t, 5)
        found = t.gradients()
        norm, h, losses = np.sqrt(sum((g.astype(float) ** 2).sum() for g in found.values())), 2e-3, []
        for sign in (1, -1):
            for name, weight in weights.items():
                t.textures.write(name, weight + sign * h / norm * found[name])
            losses.append(float(dropped(t, 5)[0]) / (BATCH * CONTEXT))
    # Along the gradient, the slope is the gradient's norm. The losses differ by 7e-3. Rounding and curvature each
    # change this difference by about 1e-6.
    assert (losses[0] - losses[1]) / (2 * h) == pytest.approx(norm, rel=5e-3)


# The optimizer


@pytest.mark.parametrize("clip", [None, 0.05])
def test_steps_are_adamw_on_the_gradients(clip: float | None) -> None:
    """Fails if weight decay changes vectors, clipping is omitted, or a step reads other moments than the last ones."""
    options = {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.5, "clip": clip, "accumulate": 2}
    with trainer(lr=0.5, **options) as t:
        known = {name: [value.astype(float), 0.0, 0.0] for name, value in t.parameters().items()}
        for step in range(1, 5):
            x, y = examples(2 * BATCH, step)
            y[0, 2 * step :] = -1
            (result,) = [*t.submit(x, y, lr=0.02 / step), *t.drain()]
            found = {name: g.astype(float) for name, g in t.gradients().items()}
            norm, factor = more.gradient_norm(list(found.values()), clip or 0.0)
            assert result.grad_norm == pytest.approx(norm, rel=1e-5)
            assert (factor < 1) == (clip is not None)
            for name, value in t.parameters().items():
                decay = 0.5 if value.ndim > 1 else 0.0
                known[name] = more.adamw(*known[name], factor * found[name], 0.02 / step, (0.8, 0.9), 1e-3, decay, step)
                ref.within(value, known[name][0], 1e-6 * step, 1e-6, f"{name} after step {step}")
