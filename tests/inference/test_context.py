"""Tests the number of positions of the KV caches: its default, its growth, and the option `--context`."""

from __future__ import annotations

import json
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from helpers.reference import random_weights, save_checkpoint

from glgpt.cli import main
from glgpt.cli.parser import build_parser
from glgpt.errors import GlgptError
from glgpt.gl.device import Device
from glgpt.inference.decoder import Decoder
from glgpt.inference.model import LanguageModel
from glgpt.models import context as module
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.models.families.llama import LlamaConfig
from glgpt.program.spec import Limits

DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
LLAMA = LlamaConfig(n_positions=131072, rope_scaling=(8.0, 1.0, 4.0, 8192.0))  # Llama 3.1's values


def load(folder: Path, **options: Any) -> LanguageModel:
    return LanguageModel.from_pretrained(folder, device=DEVICE, **options)


def greedy(model: LanguageModel, ids: list[int], tokens: int) -> list[int]:
    return list(model.generate_ids(ids, tokens, temperature=0, eos=False))


@pytest.fixture
def short_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEFAULT_CONTEXT", 16)


def test_the_default_is_2048_at_most_and_the_device_bounds_it() -> None:
    """Fails if Llama 3.1's 131,072 positions, which no texture holds, are allocated."""
    limits = Limits(max_texture_size=16384)
    assert module.first_context(LLAMA, limits) == 2048 and module.largest_context(LLAMA, limits) == 16384
    assert module.first_context(replace(LLAMA, n_positions=100), limits) == 100
    assert module.first_context(LLAMA, limits, 5000) == 5000
    assert [module.grown_context(LLAMA, limits, n) for n in (1, 16, 17, 3000, 20000)] == [1, 16, 32, 4096, 16384]
    for given, said in (
        (20000, "a context of 20000 is beyond the 16384 positions that a texture holds; lower --context"),
        (0, "context is 0; it must be a positive integer"),
        (True, "context is True; it must"),
    ):
        with pytest.raises(GlgptError, match=said):
            module.first_context(LLAMA, limits, given)
    with pytest.raises(GlgptError, match="beyond the 100 positions of the model"):
        module.first_context(replace(LLAMA, n_positions=100), limits, 101)


def test_a_context_changes_no_frequency_and_no_identity() -> None:
    """Fails if rotary scaling depends on the allocated context, or digests of the same model differ."""
    short = LLAMA.with_context(16)
    assert (short.context, short.n_positions, LLAMA.context) == (16, 131072, 131072)
    assert short.frequencies == LLAMA.frequencies and short == LLAMA and short.fields() == LLAMA.fields()
    assert LLAMA.with_context(1 << 20).context == 131072


def test_a_model_of_131072_positions_runs(goldens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if Llama 3.1 and 3.2 cannot be opened, or their logits depend on the allocated context."""
    config = json.loads((goldens / "llama3-untied/config.json").read_text())
    folder = Path(shutil.copytree(goldens / "llama3-untied", tmp_path / "long"))
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 131072}))
    known = np.load(goldens / "llama3-untied/reference.npz")
    with load(folder) as model:
        assert (model.context, model.config.n_positions) == (2048, 131072)
        np.testing.assert_allclose(model.logits(known["tokens"].tolist()), known["logits"], atol=2e-4, rtol=1e-5)
    assert main(["generate", "--model", str(folder), "--ids", "1,2", "--tokens", "2100", "--device", DEVICE]) == 0
    assert "glgpt: the context grows from 2048 to 4096 of the model's 131072 positions" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["inverse-layer-f16", "llama3-untied"])  # learned and rotary positions
@pytest.mark.usefixtures("short_default")
def test_a_context_grows_to_what_a_prompt_needs(goldens: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Fails if a prompt beyond the context is refused, or if growing changes a text or uploads the weights again."""
    with load(goldens / name, context=32) as model:
        wanted, logits = greedy(model, IDS, 12), model.logits(IDS)
        short = greedy(model, IDS[:3], 12)
    with load(goldens / name) as model, caplog.at_level(logging.INFO, "glgpt"):
        assert (model.context, model.max_context) == (16, model.config.n_positions)
        assert model.player.program.views["h.0.attn.k"].rows == 16
        weights = model.player.shared()
        running = model.generate_ids(IDS[:3], 12, temperature=0, eos=False)
        first = [next(running) for _ in range(5)]
        np.testing.assert_array_equal(model.logits(IDS), logits)  # computed with separate caches
        assert model.context == 16 and not caplog.records
        assert greedy(model, IDS, 12) == wanted
        assert model.context == 32 and model.player.shared() == weights
        assert "grows from 16 to 32" in caplog.text
        assert first + list(running) == short  # the active generation continues
        assert model.device.texture_bytes == model.texture_bytes


@pytest.mark.usefixtures("short_default")
def test_a_context_that_cannot_grow_stays(goldens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the model assumes that its caches have grown after growing them has failed or was interrupted."""
    with load(goldens / "inverse-layer-f16", context=32) as model:
        wanted = greedy(model, IDS, 12)
    with load(goldens / "inverse-layer-f16") as model:
        with ThreadPoolExecutor(1) as pool, pytest.raises(GlgptError, match="only be used in the thread"):
            pool.submit(model.generate_ids, IDS, 12).result()
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Decoder, "replace", Mock(side_effect=KeyboardInterrupt))
            model.generate_ids(IDS, 12)
        assert model.context == 16
        assert greedy(model, IDS, 12) == wanted and model.context == 32


@pytest.mark.usefixtures("short_default")
def test_texts_side_by_side_grow_together(goldens: Path) -> None:
    with load(goldens / "inverse-layer-f16") as model:
        running = model.generate_batch([IDS[:3], IDS[:5]], 10, temperature=0, eos=False)
        next(running[0])
        grown = model.generate_batch([IDS, IDS[:4]], 30, temperature=0, eos=False)
        texts = [list(g) and g.ids for g in (*grown, *running)]
    with load(goldens / "inverse-layer-f16", context=64) as model:
        prompts = ((IDS, 30), (IDS[:4], 30), (IDS[:3], 10), (IDS[:5], 10))
        assert texts == [greedy(model, ids, tokens) for ids, tokens in prompts]


def test_a_given_context_stays(goldens: Path) -> None:
    """Fails if a given context grows, or the refusal of a longer prompt does not explain how to raise the context."""
    with load(goldens / "wide", context=20) as model:
        run = model.generate_ids(IDS[:18], 10, seed=1)
        assert len(list(run)) == 10 and run.stats.slides == 1 and model.context == 20
        for ask in (model.logits, model.generate_ids):
            with pytest.raises(GlgptError, match=r"the prompt has 21 tokens .* holds 20; .* raise --context"):
                ask([*IDS, 1])


def test_the_device_bounds_a_context(goldens: Path, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a model with more positions than a texture holds cannot be used at all."""
    monkeypatch.setattr(device, "limits", replace(device.limits, max_texture_size=48))
    before = device.texture_bytes
    with pytest.raises(GlgptError, match="a context of 50 is beyond the 48 positions that a texture holds"):
        load(goldens / "inverse-layer-f16", context=50)
    assert device.texture_bytes == before
    with load(goldens / "inverse-layer-f16") as model:
        assert model.context == model.max_context == 48 < model.config.n_positions


@pytest.mark.usefixtures("short_default")
def test_without_the_memory_to_grow_a_text_slides(goldens: Path) -> None:
    with load(goldens / "inverse-layer-f16") as model:
        small = model.player.program.nbytes()
    with load(goldens / "inverse-layer-f16", context=16) as model:
        wanted = greedy(model, IDS[:10], 30)
    with load(goldens / "inverse-layer-f16", max_texture_memory=small) as model:
        assert greedy(model, IDS[:10], 30) == wanted and model.context == 16
        with pytest.raises(GlgptError, match=r"MiB with a context of 32 and --max-texture-memory is .*, lower"):
            model.generate_ids(IDS, 5)


def test_looking_inside_takes_caches_of_the_length_of_the_text(device: Device, tmp_path: Path) -> None:
    """Fails if keys, values and patterns of all 4,000 positions are allocated for a text of 11 tokens."""
    config = GPT2Config(vocab_size=30, n_positions=4000, n_embd=16, n_layer=2, n_head=2)
    before = device.texture_bytes
    with load(save_checkpoint(tmp_path, config, random_weights(config))) as model:
        model.run_with_cache(IDS[:11])
        assert model.context == 2048
        taken = device.texture_bytes - before - model.player.program.nbytes()
        assert 0 < taken < 1 << 18
        assert device.texture_bytes - before == model.texture_bytes


def test_every_command_that_runs_a_model_takes_a_context() -> None:
    commands: Any = build_parser()._subparsers
    found = commands._group_actions[0].choices
    for name in ("generate", "logits", "compare", "dump", "eval", "info", "bench", "export", "train"):
        assert "--context" in found[name]._option_string_actions, name
    for name in ("split", "federate"):
        serve = found[name]._subparsers._group_actions[0].choices["serve"]
        assert "--context" in serve._option_string_actions, name
