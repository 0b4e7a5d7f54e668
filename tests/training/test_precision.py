"""Tests training in f16: gradients compared with f32's, the loss scale, overflows, and checkpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.tiny_trainer import CONFIG, TINY, Array, Arrays, examples, same, trainer

from glgpt.errors import FileError, GlgptError
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.models.families.llama import LlamaConfig
from glgpt.training import loss_scale, state
from glgpt.training.loss_scale import LossScale, OverflowedError
from glgpt.training.program import Recipe
from glgpt.training.trainer import StepResult, Trainer

LLAMA = LlamaConfig(23, 16, 24, 2, 4, 2, 30, None, 1e-4, 100.0, None, True)
ABSURD = LossScale(2.0**40)  # with this scale, every gradient overflows


def gradients(precision: str, *batch: Array, **options: Any) -> tuple[float, Arrays]:
    """Returns the loss and the gradients of one step from fresh weights, which are the same in each call."""
    with trainer(precision=precision, **options) as t:
        return t.step(*batch), t.gradients()


def apart(a: Arrays, b: Arrays) -> float:
    """Returns the norm of the difference of all gradients, relative to the norm of b."""
    off = sum(np.square(a[name].astype(float) - b[name]).sum() for name in b)
    return float(np.sqrt(off / sum(np.square(b[name].astype(float)).sum() for name in b)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="plain", marks=pytest.mark.soak),
        pytest.param({"dropout": 0.2, "recompute": True, "kernel": "4x8", "storage": "uint"}, id="recomputed"),
        pytest.param({"batch": 1, "accumulate": 2, "fetch": "texelFetch"}, id="micro-batches", marks=pytest.mark.soak),
        pytest.param({"model": LLAMA, "context": 7}, id="llama"),
    ],
)
def test_gradients_are_those_of_f32(options: dict[str, Any]) -> None:
    """Fails if an f16 product omits a term or a scale, includes padding, or reads a packed tensor in another layout.

    Each rounding to float16 adds a relative error of up to 2^-11, and about twenty roundings follow each other.
    """
    model = options.get("model", CONFIG)
    batch = examples(config=model, context=options.get("context", 9))
    wanted, found = (gradients(precision, *batch, **options) for precision in ("f32", "f16"))
    assert abs(found[0] - wanted[0]) < 1e-3
    assert 0 < apart(found[1], wanted[1]) < 5e-3


def played(*scales: LossScale | None, steps: int = 6) -> tuple[list[StepResult], Arrays, LossScale | None]:
    """Returns the results and the state after `steps` f16 steps; step i begins with scales[i], if it is given."""
    with trainer(TINY, context=4, precision="f16") as t:
        results = []
        for i in range(steps):
            if i < len(scales) and scales[i]:
                t.loss_scale = scales[i]
            results += t.submit(*examples(seed=i, config=TINY, context=4), lr=0.01)
        results += t.drain()
        return results, t.parameters() | t.moments(), t.loss_scale


def test_an_overflow_takes_the_step_again_and_loses_none() -> None:
    """Fails if an overflowed step moves a parameter, is left out, or loses the steps queued after it."""
    results, held, scale = played(None, ABSURD, LossScale())  # later scales do not overflow
    assert [r.step for r in results] == [1, 2, 3, 4, 5, 6]
    found = results[1]
    assert found.overflows > 0 and found.loss_scale == 2.0**40 / 2**found.overflows
    assert [r.overflows for r in results if r is not found] == [0] * 5
    assert scale == LossScale(float(found.loss_scale), 5)
    plain, wanted, _ = played(None, LossScale(float(found.loss_scale)))
    assert plain == [replace(r, overflows=0) for r in results] and same(held, wanted)


def test_a_step_that_overflows_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a step that overflows with every loss scale changes a value, or its error does not say what to do."""
    monkeypatch.setattr(loss_scale, "MIN_SCALE", ABSURD.value)
    batch = examples(config=TINY, context=4)
    with trainer(TINY, context=4, precision="f16") as t:
        t.step(*batch)
        before = t.parameters() | t.moments()
        t.loss_scale = ABSURD
        with pytest.raises(OverflowedError, match=r"^step 2: .* lower lr or clip, or train with precision f32$"):
            t.step(*batch)
        assert t.steps_done == 1 and same(t.parameters() | t.moments(), before)
        t.loss_scale = LossScale()
        assert np.isfinite(t.step(*batch)) and t.steps_done == 2


def test_the_scale_grows_after_good_steps_and_shrinks_after_an_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = LossScale()
    assert LossScale(4.0, 3).after_overflow(9) == LossScale(2.0, 0)
    monkeypatch.setattr(loss_scale, "GROW_AFTER", 3)
    values = []
    for _ in range(7):
        values.append(scale.value)
        scale = scale.after_step()
    assert values == [2.0**16] * 3 + [2.0**17] * 3 + [2.0**18]
    assert LossScale(loss_scale.MAX_SCALE, 2).after_step().value == loss_scale.MAX_SCALE


def test_resuming_is_bit_identical_in_halves(tmp_path: Path) -> None:
    """Fails if the loss scale, or the number of steps since it changed, is not in the checkpoint."""

    def steps(t: Trainer, first: int, end: int) -> list[StepResult]:
        found = [r for i in range(first, end) for r in t.submit(*examples(seed=i, config=TINY, context=4))]
        return found + t.drain()

    with trainer(TINY, context=4, precision="f16") as t:
        t.loss_scale = LossScale(2.0**10, loss_scale.GROW_AFTER - 3)
        steps(t, 0, 2)
        t.save(tmp_path)
        wanted, held = steps(t, 2, 5), t.parameters() | t.moments()
    with Trainer.load(tmp_path, device="software") as t:
        assert (t.recipe.precision, t.loss_scale) == ("f16", LossScale(2.0**10, loss_scale.GROW_AFTER - 1))
        assert steps(t, 2, 5) == wanted and same(t.parameters() | t.moments(), held)
    assert [r.loss_scale for r in wanted] == [2.0**10, 2.0**11, 2.0**11]
    with Trainer.load(tmp_path, device="software", precision="f32") as t:
        assert t.loss_scale is None and t.step(*examples(config=TINY, context=4)) > 0


def test_a_damaged_loss_scale_is_refused(tmp_path: Path) -> None:
    with trainer(TINY, context=4, precision="f16") as t:
        t.save(tmp_path)
    path = tmp_path / state.STATE
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    about = json.loads(header["__metadata__"].pop("glgpt"))
    del header["__metadata__"]["sha256"]
    about["loss_scale"]["value"] = -1
    header["__metadata__"]["glgpt"] = json.dumps(about)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    with pytest.raises(FileError, match=r"damaged: loss_scale\.value: "):
        Trainer.load(tmp_path, device="software")


def test_a_loss_that_is_not_finite_is_not_taken_again() -> None:
    """Fails if a step whose loss overflows is repeated with another loss scale: it must be reported at once."""
    with trainer(TINY, context=4, precision="f16") as t:
        t.set_parameters({name: 1e6 * np.sign(a + 0.5) for name, a in t.parameters().items()})
        t.submit(*examples(config=TINY, context=4))
        result = t.drain()[-1]
        assert not np.isfinite(result.loss) and result.overflows == 0
        assert t.not_finite()


@pytest.mark.slow
@pytest.mark.parametrize("behind", [0, 2], ids=["later", "under way"])
def test_steps_count_after_a_loss_that_is_not_finite(behind: int) -> None:
    """Fails if the device skips steps after a loss that is not finite: as in f32, only that step is lost."""
    batches = [examples(seed=i, config=TINY, context=4) for i in range(4)]
    found = {}
    for precision in ("f32", "f16"):
        with trainer(TINY, context=4, precision=precision) as t:
            good = t.parameters()
            t.set_parameters({name: 1e6 * np.sign(a + 0.5) for name, a in good.items()})
            results = t.submit(*batches[0])
            for batch in batches[:behind]:
                results += t.submit(*batch)
            results += [] if behind else t.drain()
            t.set_parameters(good)
            for batch in batches[behind:]:
                results += t.submit(*batch, lr=0.05)
            results += t.drain()
            assert [r.step for r in results] == list(range(1, 6)) and t.steps_done == 5
            assert not np.isfinite(results[0].loss)
            found[precision] = [r.loss for r in results[-1 - 4 + behind :]], t.parameters()
            assert not same(found[precision][1], good)
    np.testing.assert_allclose(found["f16"][0], found["f32"][0], rtol=2e-2)


def test_results_of_good_steps_are_told_where_a_later_one_fits_no_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "MIN_SCALE", ABSURD.value)
    with trainer(TINY, context=4, precision="f16") as t:
        for i in range(3):
            t.loss_scale = ABSURD if i == 2 else LossScale()
            assert not t.submit(*examples(seed=i, config=TINY, context=4))
        with pytest.raises(OverflowedError):
            t.drain()
        assert [r.step for r in t.drain()] == [1, 2] and t.steps_done == 2


def test_recomputed_activations_are_those_of_the_step() -> None:
    """Fails if a step, a recomputation or an evaluation applies the activation function before rounding the product."""
    batch = examples(config=CONFIG, context=9)
    losses = [gradients("f16", *batch, recompute=recompute)[0] for recompute in (False, True)]
    with trainer(precision="f16") as t:
        losses.append(t.evaluate(*batch))
    assert losses == [losses[0]] * 3


def test_a_precision_that_is_none_is_refused() -> None:
    with pytest.raises(GlgptError, match="precision is 'f8'; it must be one of f32, f16"):
        Recipe(1, 1, precision="f8")


@pytest.mark.soak
def test_a_step_of_nano_is_f32s() -> None:
    """Fails if f16 gradients of a model of real size differ from f32 gradients by more than rounding explains."""
    config = GPT2Config(256, 64, 128, 4, 4)
    x, y = np.random.default_rng(0).integers(0, 256, (2, 2, 64))
    found = [gradients(precision, x, y, model=config, context=64, kernel="4x8") for precision in ("f32", "f16")]
    assert abs(found[1][0] - found[0][0]) < 1e-3
    assert apart(found[1][1], found[0][1]) < 3e-3
