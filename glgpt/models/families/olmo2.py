"""OLMo 2 (OLMo Team 2025): norms after attention and MLP, not before them, and a QK norm over all heads together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from glgpt.models.families.llama import LlamaConfig


@dataclass(frozen=True)
class Olmo2Config(LlamaConfig):
    """The configuration of an OLMo 2 model; the defaults are those of transformers."""

    vocab_size: int = 50304
    layer_norm_epsilon: float = 1e-5
    norm_before: bool = False
    norm_after: bool = True
    qk_norm: str = "width"

    model_type: ClassVar[str] = "olmo2"
    architecture: ClassVar[str] = "Olmo2ForCausalLM"
    keys: ClassVar[Mapping[str, str]] = {own: key for own, key in LlamaConfig.keys.items() if own != "mlp_bias"}
    tensors: ClassVar[Mapping[str, str]] = {
        **{role: name for role, name in LlamaConfig.tensors.items() if role not in ("norm_1", "norm_2")},
        "q_norm": "layers.{}.self_attn.q_norm",
        "k_norm": "layers.{}.self_attn.k_norm",
        "post_1": "layers.{}.post_attention_layernorm",
        "post_2": "layers.{}.post_feedforward_layernorm",
    }
