"""Llama (Touvron et al. 2023), with SmolLM2 and TinyLlama: RMS norms, rotary positions, a gated MLP."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from glgpt.errors import GlgptError, written
from glgpt.models.rotary import published_rope, read_rope
from glgpt.models.spec import ModelConfig, values_of_layers

WINDOWED, WHOLE = "sliding_attention", "full_attention"  # of `layer_types`


def read_windows(config: Mapping[str, Any], windowed: Sequence[bool]) -> dict[str, Any]:
    """Returns the window of a config.json and the layers that have it: `layer_types`, or else those `windowed`.

    Raises GlgptError for another type of layer.
    """
    types = values_of_layers(config, "layer_types", [WINDOWED if value else WHOLE for value in windowed])
    for kind in types:
        if kind not in (WINDOWED, WHOLE):
            raise GlgptError(f"config: layer_types has {written(kind)}; glgpt runs {WINDOWED!r} and {WHOLE!r}")
    layers = [kind == WINDOWED for kind in types]
    return {"window": config.get("sliding_window"), "window_layers": layers} if any(layers) else {}


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    """A Llama; the defaults are those of transformers."""

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
        """Reads the rotary positions."""
        return read_rope(config)

    def published(self) -> dict[str, Any]:
        """Returns the rotary positions, the windows, the number of key and value heads and the width of a head."""
        sizes = {"num_key_value_heads": self.n_kv_head, "head_dim": self.d_head}
        return sizes | {"rope_parameters": published_rope(self)} | self.published_windows()

    def published_windows(self) -> dict[str, Any]:
        """Returns the window and the layers that have it."""
        windows = [self.window_of(i) > 0 for i in range(self.n_layer)]
        if not any(windows):
            return {}
        types = [WINDOWED if window else WHOLE for window in windows]
        return {"use_sliding_window": True, "sliding_window": self.window, "layer_types": types}
