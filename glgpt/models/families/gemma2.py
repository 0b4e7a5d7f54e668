"""Gemma 2 (Gemma Team 2024): norms before and after attention and MLP, a window in every other layer, soft caps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from glgpt.models.families.llama import LlamaConfig
from glgpt.models.rotary import read_rope
from glgpt.models.spec import layer_count, read_windows, whole_number


@dataclass(frozen=True)
class Gemma2Config(LlamaConfig):
    """The configuration of a Gemma 2 model; the defaults are those of transformers."""

    vocab_size: int = 256000
    n_positions: int = 8192
    n_embd: int = 2304
    n_layer: int = 26
    n_head: int = 8
    n_inner: int | None = 9216
    head_dim: int | None = 256
    tie_word_embeddings: bool = True
    activation_function: str = "gelu_new"
    gain_offset: float = 1.0
    norm_after: bool = True
    scaled_embedding: bool = True

    model_type: ClassVar[str] = "gemma2"
    architecture: ClassVar[str] = "Gemma2ForCausalLM"
    every: ClassVar[int] = 2  # in each group of this many layers, the last layer has no window
    keys: ClassVar[Mapping[str, str]] = {
        **{own: key for own, key in LlamaConfig.keys.items() if own != "mlp_bias"},
        "activation_function": "hidden_activation",
        "attn_softcap": "attn_logit_softcapping",
        "logit_softcap": "final_logit_softcapping",
    }
    only: ClassVar[Mapping[str, Any]] = {"use_bidirectional_attention": False}
    # Soft caps of a model whose config.json lacks these fields.
    caps: ClassVar[Mapping[str, float]] = {"attn_softcap": 50.0, "logit_softcap": 30.0}
    tensors: ClassVar[Mapping[str, str]] = {
        **LlamaConfig.tensors,
        "post_1": "layers.{}.post_attention_layernorm",
        "norm_2": "layers.{}.pre_feedforward_layernorm",
        "post_2": "layers.{}.post_feedforward_layernorm",
    }

    @classmethod
    def more(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the rotary positions, the factor of the scores, and the number of key and value heads.

        Also reads the size of the window, and which layers have the window. Adds the soft caps that config.json lacks.
        """
        layers = layer_count(config, "num_hidden_layers", cls.n_layer)
        every = whole_number(config, "sliding_window_pattern", cls.every)
        found = cls.rope(config) | {own: cap for own, cap in cls.caps.items() if cls.keys[own] not in config}
        found |= {"query_scale": whole_number(config, "query_pre_attn_scalar", 256) ** -0.5}
        found |= {"kv_heads": config.get("num_key_value_heads", 4)}
        windowed = [(i + 1) % every != 0 for i in range(layers)]
        return found | read_windows({"sliding_window": 4096, **config}, windowed)

    @classmethod
    def rope(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the rotary positions."""
        return read_rope(config)

    def published(self) -> dict[str, Any]:
        """Adds `layer_types`, and `query_pre_attn_scalar`, whose inverse square root is the factor of the scores."""
        types = {"layer_types": ["full_attention"] * self.n_layer} | super().published()
        return types | {"query_pre_attn_scalar": round(self.scale(0) ** -2)}
