"""Phi-3 (Abdin et al. 2024): a Llama with a window; a file has one tensor for q, k and v, and one for gate and up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from glgpt.models.families.llama import KEYS_WITHOUT_BIASES, LlamaConfig
from glgpt.models.rotary import ORIGINAL


@dataclass(frozen=True)
class Phi3Config(LlamaConfig):
    """The configuration of a Phi-3 model; the defaults are those of transformers."""

    vocab_size: int = 32064
    n_positions: int = 4096
    n_embd: int = 3072
    n_inner: int | None = 8192
    layer_norm_epsilon: float = 1e-5

    model_type: ClassVar[str] = "phi3"
    architecture: ClassVar[str] = "Phi3ForCausalLM"
    keys: ClassVar[Mapping[str, str]] = KEYS_WITHOUT_BIASES
    fused: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "layers.{}.self_attn.qkv_proj": ("q", "k", "v"),
        "layers.{}.mlp.gate_up_proj": ("gate", "up"),
    }
    dropouts: ClassVar[tuple[str, ...]] = ("resid_pdrop", "embd_pdrop", "attention_dropout")

    def published(self) -> dict[str, Any]:
        """Adds the context of pretraining, and a null `pad_token_id`: its default may be outside the vocabulary."""
        return super().published() | {"pad_token_id": None, ORIGINAL: self.n_positions}
