"""Qwen3 (Yang et al. 2025): a Llama that normalises each head of the queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from glgpt.models.families.llama import LlamaConfig
from glgpt.models.families.qwen2 import Qwen2Config


@dataclass(frozen=True)
class Qwen3Config(Qwen2Config):
    """The configuration of a Qwen3 model; the defaults are those of transformers."""

    head_dim: int | None = 128
    qkv_bias: bool = False
    qk_norm: str = "head"

    model_type: ClassVar[str] = "qwen3"
    architecture: ClassVar[str] = "Qwen3ForCausalLM"
    keys: ClassVar[Mapping[str, str]] = {own: key for own, key in LlamaConfig.keys.items() if own != "mlp_bias"}
    tensors: ClassVar[Mapping[str, str]] = {
        **LlamaConfig.tensors,
        "q_norm": "layers.{}.self_attn.q_norm",
        "k_norm": "layers.{}.self_attn.k_norm",
    }
