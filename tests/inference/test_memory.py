"""Tests the memory that a model allocates and releases: textures, GL objects, and process memory during loading."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.reference import random_weights, save_checkpoint
from helpers.soak import mostly_soak

from glgpt import Ablate
from glgpt.errors import GlgptError
from glgpt.gl.device import Device
from glgpt.inference.interventions import Interventions
from glgpt.inference.model import LanguageModel
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.training.trainer import Trainer

LOAD = """
import sys
from glgpt.gl.device import open_device
from glgpt.inference.model import LanguageModel

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

open_device("software")
before = status("VmRSS")
options = {"device": "software", "kernel": "4x8", "fetch": "textureLod"}
with LanguageModel.from_pretrained(sys.argv[1], sys.argv[2], **options) as model:
    list(model.generate_ids([1, 2, 3], 2, temperature=0))
    print(status("VmHWM") - before, model.texture_bytes)
"""


def load(folder: Path, dtype: str = "f32", **options: Any) -> LanguageModel:
    return LanguageModel.from_pretrained(
        folder, dtype, device=os.environ.get("GLGPT_TEST_DEVICE", "software"), **options
    )


def state(device: Device) -> tuple[dict[int, str], int]:
    return dict(device.live), device.texture_bytes


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8", "q4"])
def test_textures_are_what_info_announces(device: Device, goldens: Path, dtype: str) -> None:
    """Fails if a model takes more memory than `info` reports, or than its program lists."""
    before = device.texture_bytes
    with load(goldens / "wide", dtype) as model:
        announced = model.info()
        assert device.texture_bytes - before == model.texture_bytes == announced["texture_bytes"]
        assert model.texture_bytes == model.player.program.nbytes() == sum(announced["bytes_by_role"].values())
        list(model.generate_ids([1, 2], 5, temperature=0))
        assert device.texture_bytes - before == model.texture_bytes == announced["texture_bytes"]
        every = [None] if dtype == "f32" else []  # None captures all names, which is slow to compile
        for names in ((), *every, ["embed"], ["ln_f"]):  # captures take more memory and release it
            model.run_with_cache([1, 2, 3], names)
            assert device.texture_bytes - before == model.texture_bytes
        assert model.info() == announced
    assert device.texture_bytes == before


def test_looking_inside_again_and_again_takes_no_more(device: Device, goldens: Path) -> None:
    """Fails if textures are kept for every set of names that was requested."""
    with load(goldens / "vocab3-untied") as model:
        sizes = set()
        for i in range(8):
            model.run_with_cache([1, 2], [f"h.{i % 2}.ln_1", f"h.{i // 4}.attn.z"])
            sizes.add(len(device.live) if i > 3 else 0)
        assert len(sizes) <= 3


def test_a_model_beyond_the_given_memory_is_refused(device: Device, goldens: Path) -> None:
    """Fails if a refused model was already loaded and its textures are not released."""
    with load(goldens / "wide") as model:
        size = model.texture_bytes
    before = state(device)
    with pytest.raises(GlgptError, match=r"its textures need .* and --max-texture-memory is"):
        load(goldens / "wide", max_texture_memory=size - 1)
    assert state(device) == before
    load(goldens / "wide", max_texture_memory=size).close()


@pytest.mark.soak
@pytest.mark.slow
def test_fifty_models_leave_nothing(device: Device, goldens: Path) -> None:
    """Fails if a closed model keeps GL objects until the driver has none left."""
    before = state(device)
    for i in range(50):
        with load(goldens / "one-f16", ("f32", "f16")[i % 2], kernel="4x4", fetch="textureLod") as model:
            assert len(list(model.generate_ids([3], 5, temperature=0))) == 5  # its context has one position
            if i % 10 == 0:
                model.logits([3])
    assert state(device) == before


@pytest.mark.slow
def test_fifty_models_at_once(device: Device, goldens: Path) -> None:
    """Fails if models share an object that each of them must own."""
    before = state(device)
    models = [load(goldens / "vocab3-untied", kernel="4x4", fetch="textureLod") for _ in range(50)]
    assert device.texture_bytes - before[1] == sum(model.texture_bytes for model in models)
    said = [list(model.generate_ids([1, 2], 3, temperature=0)) for model in models[::24]]
    assert said[0] == said[1] == said[2]
    for model in models:
        model.close()
        model.close()
    assert state(device) == before


def test_a_closed_model_refuses(device: Device, goldens: Path) -> None:
    """Fails if a closed model computes with deleted textures, or creates textures that are never released."""
    with load(goldens / "wide") as model:
        running = model.generate_ids([1, 2], 5, temperature=0)
        next(running)
    before = state(device)
    for ask in (model.logits, model.run_with_cache, lambda ids: list(model.generate_ids(ids)), lambda _: next(running)):
        with pytest.raises(GlgptError, match="wide is closed"):
            ask([1, 2])
    assert state(device) == before


@pytest.mark.parametrize(
    ("name", "value", "dtype", "said"),
    [
        ("h.1.mlp.c_fc.weight", np.nan, "f32", "finite"),
        ("ln_f.bias", np.inf, "f32", "finite"),
        ("h.1.mlp.c_proj.weight", 7e4, "f16", "more than the 65504 of f16"),
    ],
)
def test_a_model_that_cannot_be_loaded_leaves_nothing(
    device: Device, tmp_path: Path, name: str, value: float, dtype: str, said: str
) -> None:
    """Fails if the refusal of one weight leaks the weights that are already loaded."""
    config = GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=2, n_head=2)
    weights = random_weights(config)
    weights[name].flat[3] = value
    before = state(device)
    with pytest.raises(GlgptError, match=rf"(?s){name}.*{said}"):
        load(save_checkpoint(tmp_path, config, weights), dtype)
    assert state(device) == before


def test_progress_runs_to_the_end(goldens: Path) -> None:
    """Fails if progress ends before the total, or decreases."""
    seen: list[tuple[int, int]] = []
    with load(goldens / "wide", progress=lambda done, total: seen.append((done, total))) as model:
        done, totals = zip(*seen, strict=True)
        assert list(done) == sorted(done) and set(totals) == {done[-1]} == {model.player.program.nbytes(("weight",))}


def test_a_long_generation_takes_no_more(device: Device, tmp_path: Path) -> None:
    config = GPT2Config(vocab_size=30, n_positions=260, n_embd=16, n_layer=1, n_head=2)
    with load(save_checkpoint(tmp_path, config, random_weights(config))) as model:
        tokens = model.generate_ids([1, 2, 3], 203, seed=0)
        for _ in range(3):
            next(tokens)
        before = state(device)
        assert len(list(tokens)) == 200
        assert state(device) == before


@pytest.fixture(scope="module")
def large() -> Iterator[Path]:
    """Yields a checkpoint of 380 MB, much more than the interpreter takes: a GPT-2 of nine layers, random weights."""
    config = GPT2Config(vocab_size=40000, n_layer=9)
    with tempfile.TemporaryDirectory() as folder:
        yield save_checkpoint(Path(folder), config, random_weights(config, spread=0.02))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", mostly_soak(["f32", "f16"], ("f16",)))
def test_loading_holds_little_more_than_the_model(large: Path, dtype: str) -> None:
    """Fails if loading takes more than 2.3 times the f32 size of the weights, as with one more copy of them."""
    size = (large / "model.safetensors").stat().st_size
    assert size >= 200e6
    run = subprocess.run([sys.executable, "-c", LOAD, large, dtype], capture_output=True, text=True, check=True)
    taken, textures = map(int, run.stdout.split())
    assert textures < taken <= 2.3 * size


def test_a_model_that_nobody_holds_gives_its_textures_back(device: Device, goldens: Path) -> None:
    """Fails if repeated `model = LanguageModel.from_pretrained()`, as in a notebook, accumulates memory."""
    before = state(device)
    sizes = set()
    for _ in range(4):
        model = load(goldens / "wide")
        list(model.generate_ids([1, 2], 3, temperature=0))
        model.run_with_cache([1, 2, 3])
        running = model.generate([1, 2], 9, temperature=0)  # a sampled text may be empty
        next(running)
        del running, model
        device.use()
        sizes.add(device.texture_bytes)
    assert sizes == {before[1]} and state(device) == before


@pytest.mark.parametrize("changes", [(), Ablate("h.0.mlp")], ids=["plain", "with an intervention"])
def test_a_stream_keeps_its_model(device: Device, goldens: Path, changes: Interventions) -> None:
    with load(goldens / "wide") as model:
        wanted = list(model.generate_ids([1, 2], 5, temperature=0, interventions=changes))
    before = state(device)
    stream = load(goldens / "wide").generate_ids([1, 2], 5, temperature=0, interventions=changes)
    gc.collect()
    assert list(stream) == wanted
    del stream
    gc.collect()
    device.use()
    assert state(device) == before


def test_a_model_dropped_in_another_thread_is_released_in_its_own(device: Device, goldens: Path) -> None:
    before, held = state(device), [load(goldens / "wide")]
    full = device.texture_bytes
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert device.texture_bytes == full > before[1]
    load(goldens / "wide").close()
    assert state(device) == before


def test_a_trainer_that_nobody_holds_gives_its_textures_back(device: Device) -> None:
    before = state(device)
    trainer = Trainer(GPT2Config(23, 10, 8, 1, 2), batch=2, context=4, device=device.index or 0)
    trainer.step(np.zeros((2, 4), int), np.ones((2, 4), int))
    list(trainer.generate_ids([1], 2, temperature=0))
    del trainer
    gc.collect()
    device.use()
    assert state(device) == before
