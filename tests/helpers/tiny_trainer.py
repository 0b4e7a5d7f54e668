"""Creates a trainer of a tiny GPT-2 on the tests' device, and batches for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.models.families.gpt2 import GPT2Config
from glgpt.training.trainer import Trainer

Array = NDArray[Any]
Arrays = dict[str, Array]
DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")
CONFIG = GPT2Config(vocab_size=23, n_positions=10, n_embd=12, n_layer=2, n_head=2)  # 6 columns per head, padded to 8
TINY = GPT2Config(vocab_size=7, n_positions=4, n_embd=4, n_layer=1, n_head=1, n_inner=8)
BATCH, CONTEXT = 2, 9


def trainer(model: GPT2Config | Path = CONFIG, **options: Any) -> Trainer:
    return Trainer(model, **({"batch": BATCH, "context": CONTEXT, "device": DEVICE, "kernel": "4x4"} | options))


def examples(
    rows: int = BATCH, seed: int = 0, config: GPT2Config = CONFIG, context: int = CONTEXT
) -> tuple[Array, Array]:
    """Returns random token ids: the inputs and the targets of a batch."""
    x, y = np.random.default_rng(seed).integers(0, config.vocab_size, (2, rows, context))
    return x, y


def same(a: Arrays, b: Arrays) -> bool:
    """True if names, their order and all values are equal. NaN equals NaN."""
    return list(a) == list(b) and all(np.array_equal(a[name], b[name], equal_nan=True) for name in a)
