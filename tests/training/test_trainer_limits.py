"""Tests training on devices with small textures: tensors in many tiles give the same results as in one."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import reference_training as more
from helpers.soak import mostly_soak
from helpers.tiny_trainer import DEVICE, Arrays, examples, same, trainer

from glgpt.errors import GlgptError, TextureError
from glgpt.gl.device import Device
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.training import training_files
from glgpt.program.kernel import KERNELS
from glgpt.program.spec import Limits
from glgpt.training.plan import Plan
from glgpt.training.program import Recipe, training_program
from glgpt.training.settings import settings_for
from glgpt.training.trainer import Trainer
from glgpt.tuning.kernel_selection import choose

MEMORY = {"weight": 0, "state": 600 << 20, "input": 1 << 20, "scratch": 399 << 20}
LIMIT = 260  # texels per side: the MLP and the scores have more rows, and the vocabulary needs five times as many
LONG = GPT2Config(vocab_size=8, n_positions=20000, n_embd=8, n_layer=1, n_head=1)
CONFIG = GPT2Config(vocab_size=5003, n_positions=30, n_embd=35, n_layer=1, n_head=5, n_inner=270)
SHAPE = {"batch": 4, "context": 30}


def small(device: Device, monkeypatch: pytest.MonkeyPatch, most: int, size: int = LIMIT) -> None:
    monkeypatch.setattr(
        device, "limits", replace(device.limits, max_texture_size=size, max_layers=256, max_draw_buffers=most)
    )


def steps() -> tuple[Arrays, list[Arrays], list[float], list[int]]:
    """Returns initial parameters, [gradients of step 1, parameters after step 2], both losses, and generated ids."""
    x, y = examples(4, 0, CONFIG, 30)
    y[0, 7:] = -1
    with trainer(CONFIG, lr=1e-2, eps=1e-3, **SHAPE) as t:  # a small eps would amplify a gradient's last bit
        fresh, losses = t.parameters(), [t.step(x, y)]
        assert losses[0] == pytest.approx(more.mean_loss(CONFIG, fresh, x, y), rel=1e-6)
        gradients = t.gradients()
        losses.append(t.step(x, y))
        return fresh, [gradients, t.parameters()], losses, list(t.generate_ids([1, 2], 4, temperature=0))


def test_too_many_textures_are_refused_before_any_is_allocated(device: Device) -> None:
    plans: list[Plan] = []
    before = device.texture_bytes
    with pytest.raises(
        GlgptError, match=r"8 for batches of 4 x 30 tokens, more than the 1 MiB of --max-texture-memory"
    ):
        trainer(CONFIG, **SHAPE, max_texture_memory=1 << 20, on_plan=plans.append)
    assert device.texture_bytes == before and not plans
    told: list[tuple[str, int, int]] = []
    with trainer(CONFIG, **SHAPE, on_plan=plans.append, on_progress=lambda *what: told.append(what)) as t:
        assert device.texture_bytes - before == plans[0].total == sum(t.memory.values())
        assert 0 < plans[0].step_s < 60
        t.step(*examples(4, 0, CONFIG, 30))
        assert [what for what, done, total in told if done == total] == [
            "recording the training step", "compiling init", "compiling backward", "compiling update",
        ]  # fmt: skip
        shares = [done / total for what, done, total in told if what == "compiling backward"]
        assert len(shares) > 100 and shares == sorted(shares) and 0.4 < shares[len(shares) // 2] < 0.7
        told.clear()
        t.step(*examples(4, 0, CONFIG, 30))
        assert not told


@pytest.mark.parametrize(
    ("limit", "recipe", "said"),
    [
        (1000, Recipe(8, 64), None),
        (0, Recipe(8, 64), None),
        (999, Recipe(8, 64), "to reduce it, use --batch below 8, --context below 64, --precision f16, --recompute"),
        (999, Recipe(1, 64, precision="f16", recompute=True), "to reduce it, use --context below 64"),
        (599, Recipe(8, 64), "the model alone exceeds it: train a smaller one, or raise the limit"),
    ],
)
def test_what_would_take_less_memory_is_told(limit: int, recipe: Recipe, said: str | None) -> None:
    plan = Plan(recipe, MEMORY, 1.0)
    if said is None:
        plan.check(limit << 20)
        return
    with pytest.raises(GlgptError) as caught:
        plan.check(limit << 20)
    assert str(caught.value).endswith(said)
    assert "training needs 1,000 MiB of textures, 600 for parameters, gradients and moments and 400" in str(
        caught.value
    )


def test_textures_beyond_free_memory_are_refused_on_software(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the system killed a training that needed more main memory than was free."""
    plan = Plan(Recipe(8, 64), MEMORY, 1.0)
    plan.check_memory(None)
    plan.check_memory(1000 << 20)
    need = (
        "training needs 1,000 MiB of textures, .* has 999 MiB of free main memory for them; to reduce it, use --batch"
    )
    with pytest.raises(GlgptError, match=need):
        plan.check_memory(999 << 20)
    with pytest.raises(GlgptError, match=r"; train a smaller model, or .* with --max-texture-memory 1000MiB"):
        plan.check_memory(599 << 20)
    monkeypatch.setattr("glgpt.training.trainer.available_memory", lambda: 1 << 20)
    with pytest.raises(GlgptError, match="software OpenGL has 1 MiB of free main memory"):
        trainer(CONFIG, **SHAPE, device="software")
    trainer(CONFIG, **SHAPE, device="software", max_texture_memory=1 << 30).close()


def test_a_driver_that_runs_out_of_memory_names_options_of_training(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the error recommended --dtype, which glgpt train does not have."""
    before, texture = device.texture_bytes, Device.texture
    why = "the driver refused texture big, 1 x 1 x 1 (GL_OUT_OF_MEMORY)"

    def refuse(own: Device, name: str, *shape: Any) -> Any:
        if name.startswith("scratch"):
            raise TextureError(why, "use a smaller model, --dtype f16, q8 or q4, or --device software")
        return texture(own, name, *shape)

    monkeypatch.setattr(Device, "texture", refuse)
    with pytest.raises(TextureError) as caught:
        trainer(CONFIG, **SHAPE)
    assert str(caught.value).startswith(f"{why}: training needs ") and "--dtype" not in str(caught.value)
    assert str(caught.value).endswith(
        "to reduce it, use --batch below 4, --context below 30, --precision f16, --recompute"
    )
    assert device.texture_bytes == before


@cache
def uncut() -> tuple[Arrays, list[Arrays], list[float], list[int]]:
    """Returns the results of `steps` with large textures."""
    return steps()


@pytest.mark.slow
@pytest.mark.parametrize("most", mostly_soak([4, 8], [8]))
def test_a_vocabulary_beyond_a_texture_trains_alike(device: Device, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Fails if a part is lost or mixed up when tensors are tiled by rows or columns, and passes are split."""
    wanted = uncut()
    small(device, monkeypatch, most)
    found = steps()
    assert same(found[0], wanted[0]) and found[3] == wanted[3]
    assert found[2] == pytest.approx(wanted[2], rel=1e-6)
    for ours, theirs in zip(found[1], wanted[1], strict=True):
        for name, value in theirs.items():
            # The terms are the same, but the compiler may fuse a multiplication with an addition in only one of the
            # shaders, which changes a bit or two.
            assert np.linalg.norm(ours[name] - value) <= 1e-6 * np.linalg.norm(value), name


def test_more_tokens_than_a_texture_has_rows_are_refused() -> None:
    with pytest.raises(GlgptError, match="a batch of 9 x 30 tokens is beyond the 260 that this device takes"):
        training_program(CONFIG, Recipe(9, 30), Limits(LIMIT), KERNELS["4x4"])


@pytest.mark.soak
@pytest.mark.slow
def test_a_device_of_small_textures_is_probed(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fails if the initial measurements need larger textures than the device has."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    small(device, monkeypatch, 4, 2048)
    assert all(ms > 0 for ms in choose(device).measured.values())


@pytest.mark.soak
@pytest.mark.slow
def test_a_page_trains_the_preset_small() -> None:
    """Fails if the scores of six heads exceed the textures of browsers."""
    files, _, _ = training_files(["small"])
    kinds = [name.removesuffix(".bin").rpartition("-")[2] for name in files]
    assert [kinds.count(kind) for kind in ("generate", "capture", "interventions")] == [9, 9, 9] and len(files) == 36


def test_a_model_of_many_positions_is_trained_on_fewer() -> None:
    """Fails if fine-tuning uses windows of all 20,000 positions, or caches of that size, which exceed a texture."""
    assert settings_for(None, LONG, {}).context == 2048
    assert settings_for(None, LONG, {"context": 3000}).context == 3000
    with Trainer(LONG, batch=1, context=4, device=DEVICE) as trainer:
        assert trainer.player.program.views["h.0.attn.k"].rows == 2048
        trainer.step(np.zeros((1, 4), int), np.ones((1, 4), int))
        assert len(list(trainer.generate_ids([1, 2], 2))) == 2
    with Trainer(LONG, device=DEVICE) as trainer:
        assert trainer.recipe.context == 2048
