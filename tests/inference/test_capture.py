"""Tests captured activations and their memory, and models at the limits of a device."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glgpt import GlgptError, LanguageModel
from glgpt.gl.device import Device
from glgpt.inference.capture import ONE_CAPTURED
from glgpt.inference.chunks import plan
from glgpt.inference.programs import generation_program
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.program.kernel import KERNELS

DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")
IDS = [3, 1, 4, 1, 5, 9, 2, 6] * 4  # two chunks of 16


def test_a_short_prompt_is_one_chunk() -> None:
    """Fails if five tokens run one at a time, which takes more passes and gives five raw textures of one row each."""
    assert [c.size for c in plan(5, 256, (256, 64, 16, 1), ONE_CAPTURED)] == [16]
    assert [c.size for c in plan(20, 256, (256, 64, 16, 1), ONE_CAPTURED)] == [16, 16]
    assert [c.size for c in plan(10, 10, (1,), ONE_CAPTURED)] == [1] * 10


@pytest.mark.slow
def test_looking_inside_keeps_to_the_memory(goldens: Path) -> None:
    """Fails if a capture takes more than `--max-texture-memory`, or prevents generating text when it does not fit."""
    names = ["h.0.attn.pattern", "h.2.mlp.act"]
    with LanguageModel.from_pretrained(goldens / "inverse-layer-f16", device=DEVICE) as model:
        expected, own = model.run_with_cache(IDS * 2, names), model.player.program.nbytes()
        more = model.texture_bytes - own
    with LanguageModel.from_pretrained(
        goldens / "inverse-layer-f16", device=DEVICE, max_texture_memory=own + more - 1
    ) as model:
        logits, cache = model.run_with_cache(IDS * 2, names)  # in smaller chunks
        assert model.texture_bytes == model.device.texture_bytes <= own + more - 1
        np.testing.assert_allclose(logits, expected[0], atol=1e-5)
        for name in names:
            np.testing.assert_allclose(cache[name], expected[1][name], atol=1e-5)
        with LanguageModel.from_pretrained(
            goldens / "inverse-layer-f16", device=DEVICE, max_texture_memory=own
        ) as tight:
            with pytest.raises(GlgptError, match=r"capturing these activations needs .* MiB of textures"):
                tight.logits(IDS)
            assert len(list(tight.generate_ids(IDS, 3, seed=1))) == 3


def test_one_name_may_be_a_string(goldens: Path) -> None:
    with LanguageModel.from_pretrained(goldens / "wide", device=DEVICE) as model:
        assert list(model.run_with_cache([1, 2], "ln_f")[1]) == ["ln_f"]
        assert list(model.raw([1, 2], "ln_f")) == ["ln_f"]


@pytest.mark.parametrize("ids", [[1.7, 2], [float("nan")], "12", np.ones((2, 2), int)])
def test_what_are_no_ids_is_refused(goldens: Path, ids: object) -> None:
    with (
        LanguageModel.from_pretrained(goldens / "wide", device=DEVICE) as model,
        pytest.raises(GlgptError, match=r"is not an integer|token ids are expected"),
    ):
        model.logits(ids)  # type: ignore[arg-type]


def test_a_context_that_just_suffices_is_not_left(goldens: Path) -> None:
    with LanguageModel.from_pretrained(goldens / "wide", device=DEVICE) as model:
        room = model.config.n_positions - 2
        assert len(list(run := model.generate_ids([1, 2], room + 1, seed=1))) == room + 1
        assert run.stats.slides == 0
        assert len(list(run := model.generate_ids([1, 2], room + 2, seed=1))) == room + 2
        assert run.stats.slides == 1


def test_an_epsilon_of_zero_runs(goldens: Path, tmp_path: Path) -> None:
    """Fails if JSON's 0 reaches a shader as an int, which does not compile."""
    assert isinstance(GPT2Config(layer_norm_epsilon=0).layer_norm_epsilon, float)


def test_wide_vectors_and_tall_weights_fold(goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a bias wider than a texture, or a weight taller than a texture, is refused or folded wrongly."""
    reference = np.load(goldens / "wide" / "reference.npz")
    with LanguageModel.from_pretrained(goldens / "wide", device=DEVICE) as model:
        opened = model.device
    monkeypatch.setattr(opened, "limits", replace(opened.limits, max_texture_size=40))
    with LanguageModel.from_pretrained(goldens / "wide", device=DEVICE) as model:
        assert model.player.program.textures["h.0.mlp.c_fc.bias"].layers == 2
        assert model.player.program.textures["h.0.mlp.c_proj.weight"].layers > 1
        tokens, greedy = reference["tokens"].tolist(), reference["greedy"].tolist()
        np.testing.assert_allclose(model.logits(tokens), reference["logits"], atol=2e-4, rtol=1e-5)
        prompt = len(tokens) // 2
        assert list(model.generate_ids(greedy[:prompt], len(greedy) - prompt, temperature=0)) == greedy[prompt:]


def test_a_context_taller_than_a_texture_is_refused(device: Device) -> None:
    config = GPT2Config(vocab_size=9, n_positions=20000, n_embd=8, n_layer=1, n_head=2)
    with pytest.raises(GlgptError, match="texture q is 2 x 20000 x 1, beyond 16384"):
        generation_program(config, replace(device.limits, max_texture_size=16384), KERNELS["4x8"], "f32")


@pytest.mark.slow
def test_a_driver_without_es_gets_desktop_shaders(goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if an OpenGL 3.3 driver without GLSL ES fails at the first shader."""
    opened: Device
    with LanguageModel.from_pretrained(goldens / "wide", device=DEVICE) as model:
        opened, expected = model.device, model.logits([1, 2, 3])
    monkeypatch.setattr(opened, "header", "330")
    with LanguageModel.from_pretrained(goldens / "wide", device=DEVICE) as model:
        assert model.choice.options.header == "330"
        np.testing.assert_allclose(model.logits([1, 2, 3]), expected, atol=1e-5)
    monkeypatch.setattr(opened, "_compiles", Device._compiles.__get__(opened))
    assert opened._compiles("300 es") and opened._compiles("330")
