"""Tests that an export's reference run has the values of a page that captures all activations of a deep model."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
from helpers.reference import random_weights, save_checkpoint

from glgpt.inference.model import LanguageModel
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.page.output.files import reference_json
from glgpt.page.output.schemas import validate


def test_blocks_are_captured_together(tmp_path: Path) -> None:
    """Fails if blocks are captured in separate runs, which fuse other passes: f16 would then round differently."""
    config = GPT2Config(vocab_size=60, n_positions=64, n_embd=24, n_layer=14, n_head=3)
    folder = save_checkpoint(tmp_path / "deep", config, random_weights(config))
    names = list(config.activations)
    with LanguageModel.from_pretrained(folder, "f16", device="software") as model:
        reference = reference_json(model, None, names)
        logits, found = model.run_with_cache(reference["ids"], names)
    validate("reference", reference, "reference.json")

    def held(text: str) -> np.ndarray:
        return np.frombuffer(base64.b64decode(text), "<f4")

    assert np.array_equal(held(reference["logits"]["data"]), logits.ravel())
    for name, data in reference["activations"].items():
        assert np.array_equal(held(data), found[name][..., -1, :].ravel()), name
