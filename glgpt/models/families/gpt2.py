"""GPT-2 (Radford et al. 2019): layer norms, learned positions, a plain MLP, biases everywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from glgpt.errors import GlgptError
from glgpt.models.spec import ModelConfig

# Fields of `ModelConfig` that have the same name in `config.json`.
SAME = (
    "vocab_size n_positions n_embd n_layer n_head n_inner activation_function layer_norm_epsilon scale_attn_weights "
    "scale_attn_by_inverse_layer_idx tie_word_embeddings"
)


@dataclass(frozen=True)
class GPT2Config(ModelConfig):
    """The configuration of a GPT-2 model: fields are named as in its `config.json`, with defaults of the 124M model."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    tie_word_embeddings: bool = True
    positions: str = "absolute"
    norm: str = "layer"
    gated: bool = False
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True

    model_type: ClassVar[str] = "gpt2"
    architecture: ClassVar[str] = "GPT2LMHeadModel"
    prefix: ClassVar[str] = "transformer."
    keys: ClassVar[Mapping[str, str]] = {name: name for name in SAME.split()}
    tensors: ClassVar[Mapping[str, str]] = {
        "embed": "wte",
        "positions": "wpe",
        "block": "h.{}",
        "norm_1": "h.{}.ln_1",
        "qkv": "h.{}.attn.c_attn",
        "o": "h.{}.attn.c_proj",
        "norm_2": "h.{}.ln_2",
        "up": "h.{}.mlp.c_fc",
        "down": "h.{}.mlp.c_proj",
        "norm": "ln_f",
    }
    buffers: ClassVar[re.Pattern[str]] = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")  # causal masks
    input_first: ClassVar[bool] = True
    scaled_outputs: ClassVar[bool] = True
    dropouts: ClassVar[tuple[str, ...]] = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    # Upcasting attention to f32 would lose precision in the float64 reference.
    reference_options: ClassVar[dict[str, Any]] = {"attn_implementation": "eager", "reorder_and_upcast_attn": False}

    @classmethod
    def more(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns no further fields. Raises GlgptError for a decoder that also attends to an encoder."""
        if config.get("add_cross_attention"):
            raise GlgptError("config: add_cross_attention is set; glgpt runs decoder-only GPT-2")
        return {}


# The published GPT-2 models, by their number of parameters.
SIZES = {
    "124M": GPT2Config(),
    "355M": GPT2Config(n_embd=1024, n_layer=24, n_head=16),
    "774M": GPT2Config(n_embd=1280, n_layer=36, n_head=20),
    "1558M": GPT2Config(n_embd=1600, n_layer=48, n_head=25),
}
