"""Mistral (Jiang et al. 2023): a Llama in which all layers have a window by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from glgpt.models.families.llama import KEYS_WITHOUT_BIASES, LlamaConfig


@dataclass(frozen=True)
class MistralConfig(LlamaConfig):
    """The configuration of a Mistral model; the defaults are those of transformers."""

    n_positions: int = 131072
    n_inner: int | None = 14336

    model_type: ClassVar[str] = "mistral"
    architecture: ClassVar[str] = "MistralForCausalLM"
    keys: ClassVar[Mapping[str, str]] = KEYS_WITHOUT_BIASES

    @classmethod
    def more(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the rotary positions, the window and the number of key and value heads."""
        found = super().more({"sliding_window": 4096, **config})
        return found | {"kv_heads": config.get("num_key_value_heads", 8)}

    def published(self) -> dict[str, Any]:
        """Adds a null `sliding_window` if the model has no window: without that entry, the window would be 4,096."""
        return {"sliding_window": None} | super().published()
