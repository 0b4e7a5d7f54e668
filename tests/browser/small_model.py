"""A small random GPT-2 for tests of what a page does, whatever the model: three blocks, and a tokenizer of bytes."""

from __future__ import annotations

from pathlib import Path

from helpers.reference import random_weights, save_checkpoint

from glgpt.models.families.gpt2 import GPT2Config
from glgpt.text.files import Text
from glgpt.text.tokenizer_training import make_tokenizer

CONFIG = GPT2Config.sized(256, 256, 64, 3, 2)


def write_small_model(folder: Path) -> Path:
    """Writes the checkpoint into a new folder, which it returns."""
    save_checkpoint(folder, CONFIG, random_weights(CONFIG))
    make_tokenizer("bytes", Text.of_string("a"), folder)
    return folder
