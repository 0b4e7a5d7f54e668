"""Writes a small random GPT-2 with the embedded model's tokenizer, for tests that do not need a trained model."""

from __future__ import annotations

import shutil
from pathlib import Path

from helpers.reference import random_weights, save_checkpoint

from glgpt.models.families.gpt2 import GPT2Config
from glgpt.system.files import data_path

CONFIG = GPT2Config.sized(1024, 256, 64, 3, 2)
EMBEDDED_BLOCKS = GPT2Config.sized(1024, 256, 64, 6, 8)  # as many blocks and heads as the embedded model


def write_small_model(folder: Path, config: GPT2Config = CONFIG, seed: int = 0) -> None:
    """Writes the checkpoint into a new folder."""
    save_checkpoint(folder, config, random_weights(config, seed))
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(data_path("weights/shakespeare") / name, folder)
