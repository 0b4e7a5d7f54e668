"""Llama (Touvron et al. 2023), with SmolLM2 and TinyLlama: RMS norms, rotary positions, a gated MLP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from glgpt.models.rotary import published_rope, read_rope
from glgpt.models.spec import ModelConfig, layer_count, published_windows, read_windows


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    """The configuration of a Llama model; the defaults are those of transformers."""

    vocab_size: int = 32000
    n_positions: int = 2048
    n_embd: int = 4096
    n_layer: int = 32
    n_head: int = 32
    n_inner: int | None = 11008

    model_type: ClassVar[str] = "llama"
    architecture: ClassVar[str] = "LlamaForCausalLM"
    prefix: ClassVar[str] = "model."
    keys: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "n_positions": "max_position_embeddings",
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "kv_heads": "num_key_value_heads",
        "n_inner": "intermediate_size",
        "head_dim": "head_dim",
        "layer_norm_epsilon": "rms_norm_eps",
        "rope_theta": "rope_theta",
        "activation_function": "hidden_act",
        "qkv_bias": "attention_bias",
        "out_bias": "attention_bias",
        "mlp_bias": "mlp_bias",
        "tie_word_embeddings": "tie_word_embeddings",
    }
    tensors: ClassVar[Mapping[str, str]] = {
        "embed": "embed_tokens",
        "block": "layers.{}",
        "norm_1": "layers.{}.input_layernorm",
        "q": "layers.{}.self_attn.q_proj",
        "k": "layers.{}.self_attn.k_proj",
        "v": "layers.{}.self_attn.v_proj",
        "o": "layers.{}.self_attn.o_proj",
        "norm_2": "layers.{}.post_attention_layernorm",
        "gate": "layers.{}.mlp.gate_proj",
        "up": "layers.{}.mlp.up_proj",
        "down": "layers.{}.mlp.down_proj",
        "norm": "norm",
    }
    buffers: ClassVar[re.Pattern[str]] = re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq")

    @classmethod
    def more(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the rotary positions and, if there is a `sliding_window` as in Mistral, the window.

        The layers that `layer_types` lists as windowed have the window; without that list, all layers have it. If
        `use_sliding_window` is false, no layer has it.
        """
        found = read_rope(config)
        if config.get("sliding_window") is None or config.get("use_sliding_window") is False:
            return found
        layers = layer_count(config, "num_hidden_layers", cls.n_layer)
        return found | read_windows(config, [True] * layers)

    def published(self) -> dict[str, Any]:
        """Returns the entries for rotary positions, windows, the number of key and value heads and a head's width."""
        sizes = {"num_key_value_heads": self.n_kv_head, "head_dim": self.d_head}
        return sizes | {"rope_parameters": published_rope(self)} | published_windows(self)


# `keys` for families whose `config.json` has no setting for biases.
KEYS_WITHOUT_BIASES = {own: key for own, key in LlamaConfig.keys.items() if "bias" not in own}
