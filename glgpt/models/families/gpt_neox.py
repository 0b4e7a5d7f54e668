"""GPT-NeoX and Pythia (Black et al. 2022): attention and MLP in parallel; a quarter of the columns of a head rotate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from glgpt.models.rotary import published_rope, read_rope
from glgpt.models.spec import ModelConfig


@dataclass(frozen=True)
class GPTNeoXConfig(ModelConfig):
    """The configuration of a GPT-NeoX model; the defaults are those of transformers."""

    vocab_size: int = 50432
    n_positions: int = 2048
    n_embd: int = 6144
    n_layer: int = 44
    n_head: int = 64
    n_inner: int | None = 24576
    layer_norm_epsilon: float = 1e-5
    activation_function: str = "gelu"
    norm: str = "layer"
    gated: bool = False
    parallel: bool = True
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    rotary_share: float = 0.25
    interleaved_heads: bool = True

    model_type: ClassVar[str] = "gpt_neox"
    architecture: ClassVar[str] = "GPTNeoXForCausalLM"
    prefix: ClassVar[str] = "gpt_neox."
    head: ClassVar[str] = "embed_out.weight"
    keys: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "n_positions": "max_position_embeddings",
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "layer_norm_epsilon": "layer_norm_eps",
        "activation_function": "hidden_act",
        "parallel": "use_parallel_residual",
        "qkv_bias": "attention_bias",
        "out_bias": "attention_bias",
        "rope_theta": "rotary_emb_base",
        "rotary_share": "rotary_pct",
        "tie_word_embeddings": "tie_word_embeddings",
    }
    tensors: ClassVar[Mapping[str, str]] = {
        "embed": "embed_in",
        "block": "layers.{}",
        "norm_1": "layers.{}.input_layernorm",
        "qkv": "layers.{}.attention.query_key_value",
        "o": "layers.{}.attention.dense",
        "norm_2": "layers.{}.post_attention_layernorm",
        "up": "layers.{}.mlp.dense_h_to_4h",
        "down": "layers.{}.mlp.dense_4h_to_h",
        "norm": "final_layer_norm",
    }
    buffers: ClassVar[re.Pattern[str]] = re.compile(r"layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)")
    dropouts: ClassVar[tuple[str, ...]] = ("attention_dropout", "hidden_dropout")

    @classmethod
    def more(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the rotary positions."""
        return read_rope(config)

    def published(self) -> dict[str, Any]:
        """Returns the rotary positions, always with the share of rotated columns, since the default share is not 1."""
        return {"rope_parameters": published_rope(self) | {"partial_rotary_factor": self.rotary_share}}
