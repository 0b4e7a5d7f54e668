"""Tests KV caches of 16-bit floats: their memory, their rounding, and when they are the default."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.reference import random_weights, save_checkpoint

from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import weight_formats
from glgpt.errors import FileError, GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.programs import cache_format

DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")
CONFIG = GPT2Config(vocab_size=300, n_positions=64, n_embd=64, n_layer=2, n_head=4)
NAMES = ["h.0.attn.k", "h.0.mlp.act"]
IDS = np.random.default_rng(0).integers(0, 300, 40).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("model"), CONFIG, random_weights(CONFIG))


def load(folder: Path, **options: Any) -> LanguageModel:
    return LanguageModel.from_pretrained(folder, device=DEVICE, **options)


def test_half_caches_take_half_the_memory_and_round_keys_and_values(folder: Path, tmp_path: Path) -> None:
    """Fails if `cache_dtype` has no effect or changes logits too much, or a saved cache is read in another format."""
    with load(folder) as whole, load(folder, cache_dtype="f16") as half:
        numbers = CONFIG.n_layer * CONFIG.n_positions * CONFIG.n_embd  # floats of all keys; values have as many
        saved = whole.texture_bytes - half.texture_bytes
        # Two bytes are saved for each number of keys, values and queries. All layers share one texture of queries.
        assert saved == 2 * (2 * numbers + CONFIG.n_positions * CONFIG.n_embd)
        (exact, wanted), (found, rounded) = (m.run_with_cache(IDS, NAMES) for m in (whole, half))
        keys = wanted["h.0.attn.k"].astype(np.float16).astype(np.float32)
        np.testing.assert_allclose(rounded["h.0.attn.k"], keys, rtol=2**-10)  # a driver may round to either side
        assert not np.array_equal(rounded["h.0.attn.k"], wanted["h.0.attn.k"])
        assert 0 < np.abs(found - exact).max() < 2e-3 * np.abs(exact).max()
        texts = [list(m.generate_ids(IDS, 12, temperature=0, eos=False)) for m in (whole, half)]
        assert texts[0] == texts[1]
        half.save_cache(tmp_path / "cache")
        with pytest.raises(FileError, match="saved with another cache_dtype, f16"):
            whole.load_cache(tmp_path / "cache")
    with pytest.raises(GlgptError, match="cache_dtype 'f8' is not one of auto, f32, f16"):
        load(folder, cache_dtype="f8")


@pytest.mark.parametrize(
    ("dtype", "asked", "expected"),
    [
        ("f32", "auto", "f32"),
        ("f16", "auto", "f32"),
        ("q8", "auto", "f16"),
        ("q4", "f32", "f32"),
        ("f32", "f16", "f16"),
    ],
)
def test_a_page_has_half_caches_with_quantized_weights(folder: Path, dtype: str, asked: str, expected: str) -> None:
    with Checkpoint.open(folder) as checkpoint:
        assert cache_format(CONFIG, weight_formats(checkpoint, dtype), asked) == expected
