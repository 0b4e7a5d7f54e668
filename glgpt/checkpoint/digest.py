"""A short name for a checkpoint's contents, by which two sides of a split model know that they hold the same."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from glgpt.checkpoint.opening import Checkpoint

_SAMPLES = 1024  # numbers of each tensor


def model_digest(checkpoint: Checkpoint) -> str:
    """32 hexadecimal digits of the configuration and of 1,024 numbers spread over each tensor.

    It tells models and checkpoints of one model apart, however large, in milliseconds; it is no seal against forgery.
    """
    digest = hashlib.sha256(json.dumps(checkpoint.whole.fields(), sort_keys=True).encode())
    for name in checkpoint.config.parameters:
        flat = checkpoint.sample(name, _SAMPLES)
        digest.update(name.encode() + np.ascontiguousarray(flat, "<f4").tobytes())
    return digest.hexdigest()[:32]
