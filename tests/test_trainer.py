"""Training: against torch's golden, parts and recomputation, dropout, what is saved, what is refused, and memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference as ref
import reference_training as more
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


def test_one_mask_serves_both_ways() -> None:
    """The backward pass drops others than the forward pass: the gradient is no slope of the loss."""
    with trainer(dropout=0.3) as t:
        weights = t.parameters()
        dropped(t, 5)
        found = t.gradients()
        norm, h, losses = np.sqrt(sum((g.astype(float) ** 2).sum() for g in found.values())), 1e-2, []
        for sign in (1, -1):
            for name, weight in weights.items():
                t._write(name, weight + sign * h / norm * found[name])
            losses.append(float(dropped(t, 5)[0]) / (BATCH * CONTEXT))
    # Along the gradient the slope is its norm; f32 knows the losses to some 1e-7 of 2e-2, and h squared adds as much.
    assert (losses[0] - losses[1]) / (2 * h) == pytest.approx(norm, rel=2e-3)


# The optimizer


@pytest.mark.parametrize("clip", [None, 0.05])
def test_steps_are_adamw_on_the_gradients(clip: float | None) -> None:
    """Decay reaches vectors, clipping is left out, a moment is lost in a flip, or an odd step is read from old states."""
    options = {"betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.5, "clip": clip, "accumulate": 2}
    with trainer(lr=0.5, **options) as t:
        known = {name: [value.astype(float), 0.0, 0.0] for name, value in t.parameters().items()}
        for step in range(1, 5):
            x, y = examples(2 * BATCH, step)
            (result,) = [*t.submit(x, y, lr=0.02 / step), *t.drain()]
            found = {name: g.astype(float) for name, g in t.gradients().items()}
            norm, factor = more.gradient_norm(list(found.values()), clip or 0.0)
            assert result.grad_norm == pytest.approx(norm, rel=1e-5)
            assert (factor < 1) == (clip is not None)
            for name, value in t.parameters().items():
                decay = 0.5 if value.ndim > 1 else 0.0
                known[name] = more.adamw(*known[name], factor * found[name], 0.02 / step, (0.8, 0.9), 1e-3, decay, step)
                ref.within(value, known[name][0], 1e-6 * step, 1e-6, f"{name} after step {step}")


# States


def test_a_loaded_training_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Something that training depends on is not saved: a moment, the step's number, the seed of dropout."""
    options = {"dropout": 0.2, "accumulate": 2, "seed": 2**32 - 1, "lr": 5e-3, "betas": (0.9, 0.99)}
    batches = [examples(2 * BATCH, i) for i in range(6)]
    with trainer(**options) as t:
        for batch in batches[:3]:
            t.submit(*batch)
        t.save(tmp_path)
        losses = [t.step(*batch) for batch in batches[3:]]
        whole, loss = t.parameters() | {"d": t.gradients()["wte.weight"]}, t.evaluate(*examples())
    with Trainer.load(tmp_path, device=DEVICE, kernel="4x4") as t:
        assert t.steps_done == 3
        assert [t.step(*batch) for batch in batches[3:]] == losses
        assert same(t.parameters() | {"d": t.gradients()["wte.weight"]}, whole)
        assert t.evaluate(*examples()) == loss
    with Trainer.load(tmp_path, device=DEVICE, kernel="4x4", seed=1) as t:
        assert t.step(*batches[3]) != losses[0]


def test_a_seed_gives_its_bits() -> None:
    """A run cannot be repeated, or all seeds begin alike."""
    found = []
    for seed in (3, 3, 4):
        with trainer(seed=seed, dropout=0.1) as t:
            fresh = t.parameters()
            t.step(*examples())
            found.append((fresh, t.parameters()))
    assert same(found[0][0], found[1][0]) and same(found[0][1], found[1][1])
    assert not np.array_equal(found[0][0]["wte.weight"], found[2][0]["wte.weight"])


def test_what_is_saved_writes_the_same_text(tmp_path: Path) -> None:
    """The weights do not load as a model, or the trainer generates from others than it has."""
    x, _ = examples()
    with trainer(lr=1e-2) as t:
        for _ in range(20):
            t.submit(x, (x + 5) % CONFIG.vocab_size)  # which the greedy text then follows, clear of near ties
        found = list(t.generate([3], 6, temperature=0))
        sampled = list(t.generate([3], 6, seed=1))
        assert sampled == list(t.generate([3], 6, seed=1))
        t.save(tmp_path)
        tokens = t.generate([3], 4, temperature=0)
        after = [3, next(tokens)]
        for _ in range(3):  # a generation that is under way goes on with the new parameters
            t.step(x, (x + 2) % CONFIG.vocab_size, lr=0.1)
        assert next(tokens) == next(t.generate(after, 1, temperature=0))
        tokens.close()
    with GPT2.from_pretrained(tmp_path, device=DEVICE) as model:
        assert list(model.generate([3], 6, temperature=0)) == found
    assert len(set(found)) > 1


def test_results_come_late_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step waits for the device, or a result is lost."""
    with trainer(TINY, context=4) as t:
        batch = examples(config=TINY, context=4)
        t.step(*batch)  # shaders are compiled
        with monkeypatch.context() as patch:
            for name in ("read", "finish"):
                patch.setattr(Player, name, lambda *_: pytest.fail("a step waits"))
            found = [t.submit(*batch) for _ in range(LATE + 4)]
        assert [len(results) for results in found] == [0] * (LATE + 1) + [1] * 3
        rest = t.drain()
        assert [r.step for r in [*sum(found, []), *rest]] == list(range(2, LATE + 6))
        assert t.drain() == []
        assert [r.loss for r in rest] == sorted((r.loss for r in rest), reverse=True)


# What is not finite, and what is refused


@pytest.mark.parametrize(
    ("name", "value", "first"),
    [("h.1.mlp.c_fc.weight", np.nan, "h.1.mlp.c_fc.weight"), ("ln_f.weight", 3e38, "d.wte.weight")],
)
def test_a_step_that_is_not_finite_changes_nothing(name: str, value: float, first: str) -> None:
    """NaN spreads to every parameter and moment, and nobody knows from where."""
    with trainer() as t:
        t.step(*examples())
        assert t.not_finite() is None
        good = t.parameters()[name]
        t._write(name, np.full_like(good, value))
        before = t.parameters()
        (result,) = [*t.submit(*examples()), *t.drain()]
        assert not np.isfinite([result.loss, result.grad_norm]).all()
        assert same(t.parameters(), before)
        assert t.not_finite() == first
        t._write(name, good)
        moments = [t._read(n, "", ".moment") for n in before]
        assert all(np.isfinite(m).all() for m in moments)
        assert np.isfinite(t.step(*examples()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 11}, "context of 11 tokens is beyond"), ({"context": 0}, "context is 0"), ({"batch": 0}, "batch is 0"),
        ({"batch": 2.5}, "batch is 2.5"), ({"accumulate": 0}, "accumulate is 0"), ({"accumulate": 257}, "257 parts"),
        ({"dropout": 1.0}, "dropout is 1.0"), ({"dropout": -0.1}, "dropout"), ({"clip": np.nan}, "clip is nan"),
        ({"betas": (0.9, 1.0)}, "betas"), ({"eps": 0.0}, "eps is 0.0"), ({"weight_decay": -1}, "weight_decay is -1"),
        ({"seed": -1}, "seed is -1"), ({"seed": 2**32}, "seed"), ({"kernel": "9x9"}, "kernel '9x9'"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(GlgptError, match=message) as caught:
        trainer(**options)
    assert "\n" not in str(caught.value)


def test_bad_arrays_are_refused() -> None:
    x, y = examples(config=TINY, context=4)
    with trainer(TINY, context=4, clip=1, eps=1, weight_decay=1) as t:  # whole numbers are settings too
        before = t.parameters()
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: t.step(x[:1], y), r"inputs are int64 \[1, 4\], not whole numbers \[2, 4\]"),
            (lambda: t.step(x, y[:, :3]), r"targets are int64 \[2, 3\]"),
            (lambda: t.step(x.astype(float), y), "inputs are float64"),
            (lambda: t.step(x + 7, y), r"inputs hold id \d+, outside the vocabulary of 7"),
            (lambda: t.step(x - 9, y), "inputs hold id -"),
            (lambda: t.step(x, y - 9), "targets hold id -"),
            (lambda: t.step(x, 0 * y - 1), "all below zero"),
            (lambda: t.step(x, y, lr=np.nan), "lr is nan"),
            (lambda: t.evaluate(x, y[:1]), r"inputs \[2, 4\] and targets \[1, 4\]"),
            (lambda: t.evaluate(x[:0], y[:0]), "not rows"),
            (lambda: t.evaluate(x[0], y[0]), "not rows"),
            (lambda: list(t.generate([], 1)), "a prompt is 1 to 4 ids below 7"),
            (lambda: list(t.generate([7], 1)), "ids below 7"),
            (lambda: list(t.generate([0] * 5, 1)), "1 to 4 ids"),
        ]
        for call, message in calls:
            with pytest.raises(GlgptError, match=message):
                call()
        assert same(t.parameters(), before) and t.steps_done == 0
        assert np.isfinite(t.step(x, y))


def test_a_folder_without_a_state_is_refused(goldens: Path, tmp_path: Path) -> None:
    with pytest.raises(GlgptError, match="holds no state of a training"):
        Trainer.load(goldens / "wide")
    with trainer(TINY, context=4) as t:
        t.save(tmp_path)
    state = tmp_path / "state.safetensors"
    for damage in (state.read_bytes()[:-9], b"", b"x" * 100):
        state.write_bytes(damage)
        with pytest.raises(GlgptError, match="is damaged"):
            Trainer.load(tmp_path, device=DEVICE)


# Memory


@pytest.mark.slow
def test_a_thousand_steps_take_no_more_than_the_plan(device: Device) -> None:
    """Memory is not what was announced, or grows with steps, evaluations and samples."""
    before = dict(device.live), device.texture_bytes
    x, y = examples(4, config=TINY, context=4)
    with trainer(TINY, context=4, accumulate=2) as t:
        assert device.texture_bytes - before[1] == sum(t.memory.values()) == t.player.program.nbytes()

        def round_() -> None:
            for _ in range(100):
                t.submit(x, y)
            t.evaluate(x, y)
            list(t.generate([1], 3, temperature=0))

        round_()
        live, taken = dict(device.live), device.texture_bytes
        for _ in range(9):
            round_()
        assert t.steps_done == 1000
        assert (device.live, device.texture_bytes) == (live, taken)
    t.close()
    assert (device.live, device.texture_bytes) == before


def test_a_constructor_that_fails_leaves_nothing(
    device: Device, goldens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that breaks off half way keeps its textures on the device."""
    monkeypatch.setattr(Trainer, "_write", lambda *_: (_ for _ in ()).throw(GlgptError("cut short")))
    before = dict(device.live), device.texture_bytes
    with pytest.raises(GlgptError, match="cut short"):
        trainer(goldens / "training")
    assert (device.live, device.texture_bytes) == before
