"""Llama's functions and whole forward pass in float64 numpy, written independently of the engine, as a reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.models.families.llama import LlamaConfig
from helpers import reference as ref

Array = NDArray[Any]


def rms(x: Array, gain: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + eps) * gain


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def rotated(x: Array, positions: Array, frequencies: Array) -> Array:
    """Returns x `[.., T, d]` with its columns i and i + d / 2 rotated by positions times frequencies[i]."""
    angle = positions[:, None] * np.asarray(frequencies)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)


def llama(config: LlamaConfig, weights: Mapping[str, Any], ids: list[int]) -> Array:
    """Returns the logits of a whole Llama in float64, `[T, vocab]`."""
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    d, heads, kv, eps = config.d_head, config.n_head, config.n_kv_head, config.layer_norm_epsilon
    positions = np.arange(len(ids))
    x = w["embed_tokens.weight"][ids]
    for i in range(config.n_layer):
        layer = f"layers.{i}."
        y = rms(x, w[layer + "input_layernorm.weight"], eps)
        q, k, v = (
            (y @ w[f"{layer}self_attn.{part}_proj.weight"].T).reshape(len(ids), -1, d).transpose(1, 0, 2)
            for part in "qkv"
        )
        q, k = (rotated(part, positions, np.array(config.frequencies)) for part in (q, k))
        k, v = (np.repeat(part, heads // kv, axis=0) for part in (k, v))
        scores = q @ k.transpose(0, 2, 1) * d**-0.5
        pattern = ref.softmax(np.where(np.tri(len(ids), dtype=bool), scores, -np.inf))
        z = (pattern @ v).transpose(1, 0, 2).reshape(len(ids), -1)
        x = x + z @ w[layer + "self_attn.o_proj.weight"].T
        y = rms(x, w[layer + "post_attention_layernorm.weight"], eps)
        gate, up = (y @ w[f"{layer}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
        x = x + silu(gate) * up @ w[layer + "mlp.down_proj.weight"].T
    return rms(x, w["norm.weight"], eps) @ w[config.output].T
