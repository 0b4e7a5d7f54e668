"""GPT-Neo and TinyStories (Black et al. 2021): GPT-2 with unscaled scores, and a window in every other layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from glgpt.errors import GlgptError, written
from glgpt.models.spec import ModelConfig


@dataclass(frozen=True)
class GPTNeoConfig(ModelConfig):
    """The configuration of a GPT-Neo model; the defaults are those of transformers."""

    vocab_size: int = 50257
    n_positions: int = 2048
    n_embd: int = 2048
    n_layer: int = 24
    n_head: int = 16
    layer_norm_epsilon: float = 1e-5
    activation_function: str = "gelu_new"
    tie_word_embeddings: bool = True
    scale_attn_weights: bool = False
    positions: str = "absolute"
    norm: str = "layer"
    gated: bool = False
    out_bias: bool = True
    mlp_bias: bool = True

    model_type: ClassVar[str] = "gpt_neo"
    architecture: ClassVar[str] = "GPTNeoForCausalLM"
    prefix: ClassVar[str] = "transformer."
    keys: ClassVar[Mapping[str, str]] = {
        "vocab_size": "vocab_size",
        "n_positions": "max_position_embeddings",
        "n_embd": "hidden_size",
        "n_layer": "num_layers",
        "n_head": "num_heads",
        "n_inner": "intermediate_size",
        "layer_norm_epsilon": "layer_norm_epsilon",
        "activation_function": "activation_function",
        "tie_word_embeddings": "tie_word_embeddings",
    }
    tensors: ClassVar[Mapping[str, str]] = {
        "embed": "wte",
        "positions": "wpe",
        "block": "h.{}",
        "norm_1": "h.{}.ln_1",
        "q": "h.{}.attn.attention.q_proj",
        "k": "h.{}.attn.attention.k_proj",
        "v": "h.{}.attn.attention.v_proj",
        "o": "h.{}.attn.attention.out_proj",
        "norm_2": "h.{}.ln_2",
        "up": "h.{}.mlp.c_fc",
        "down": "h.{}.mlp.c_proj",
        "norm": "ln_f",
    }
    buffers: ClassVar[re.Pattern[str]] = re.compile(r"h\.\d+\.attn\.attention\.(bias|masked_bias)")
    dropouts: ClassVar[tuple[str, ...]] = ("resid_dropout", "embed_dropout", "attention_dropout")

    @classmethod
    def more(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the size of the window, and which layers have it (`attention_types`: [[kinds, repeats], ..]).

        Raises GlgptError for an unknown kind.
        """
        types = config.get("attention_types") or [[["global", "local"], 12]]
        try:
            kinds = [kind for names, repeats in types for kind in list(names)[:1000] * min(repeats, 1000)][:1001]
        except (TypeError, ValueError):
            raise GlgptError(f"config: attention_types is {written(types)}; write [[kinds, repeats], ..]") from None
        for kind in kinds:
            if kind not in ("global", "local"):
                raise GlgptError(f"config: attention_types has {written(kind)}; glgpt runs 'global' and 'local'")
        windowed = [kind == "local" for kind in kinds]
        return {"window": config.get("window_size", 256), "window_layers": windowed} if any(windowed) else {}

    def published(self) -> dict[str, Any]:
        """Returns the entries of `config.json` for the size of the window and for the layers that have it."""
        kinds = ["local" if self.window_of(i) else "global" for i in range(self.n_layer)]
        return {"attention_types": [[kinds, 1]], "window_size": self.window or 256}
