"""Computes a digest of a checkpoint; a split model's client and server compare digests of their checkpoints."""

from __future__ import annotations

import hashlib
import json

import numpy as np

from glgpt.checkpoint.opening import Checkpoint

_SAMPLES = 1024  # maximum number of values of each tensor


def model_digest(checkpoint: Checkpoint) -> str:
    """Returns 32 hexadecimal digits, computed from the configuration and up to 1,024 values spread over each tensor.

    The digest distinguishes models, and also the checkpoints of one model. It does not detect forgery. If an adapter
    changes a tensor, reads the whole tensor; otherwise, reads only the values from which the digest is computed.
    """
    digest = hashlib.sha256(json.dumps(checkpoint.whole.fields(), sort_keys=True).encode())
    for name in checkpoint.config.parameters:
        flat = checkpoint.sample(name, _SAMPLES)
        digest.update(name.encode() + np.ascontiguousarray(flat, "<f4").tobytes())
    return digest.hexdigest()[:32]
