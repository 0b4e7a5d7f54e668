"""A digest of a checkpoint, with which client and server of a split model check that they hold the same one."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from glgpt.checkpoint.opening import Checkpoint

_SAMPLES = 1024  # values of each tensor


def model_digest(checkpoint: Checkpoint) -> str:
    """Returns 32 hexadecimal digits, from the configuration and 1,024 values spread over each tensor.

    It distinguishes models, and checkpoints of one model, in milliseconds at any size. It does not detect forgery.
    """
    digest = hashlib.sha256(json.dumps(checkpoint.whole.fields(), sort_keys=True).encode())
    for name in checkpoint.config.parameters:
        flat = checkpoint.sample(name, _SAMPLES)
        digest.update(name.encode() + np.ascontiguousarray(flat, "<f4").tobytes())
    return digest.hexdigest()[:32]
