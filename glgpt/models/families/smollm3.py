"""SmolLM3 (Hugging Face, 2025): a Llama in which every fourth layer does not rotate queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from glgpt.models.families.llama import LlamaConfig
from glgpt.models.rotary import read_rope
from glgpt.models.spec import layer_count, read_windows, values_of_layers, whole_number


@dataclass(frozen=True)
class SmolLM3Config(LlamaConfig):
    """The configuration of a SmolLM3 model; the defaults are those of transformers."""

    vocab_size: int = 128256
    n_positions: int = 32768
    n_embd: int = 2048
    n_layer: int = 36
    n_head: int = 16
    kv_heads: int | None = None
    rope_theta: float = 2000000.0
    tie_word_embeddings: bool = True

    model_type: ClassVar[str] = "smollm3"
    architecture: ClassVar[str] = "SmolLM3ForCausalLM"

    @classmethod
    def more(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the rotary positions, which layers rotate, the window, and the number of key and value heads.

        If `use_sliding_window` is set and there are no `layer_types`, the layers that do not rotate have the window.
        """
        layers = layer_count(config, "num_hidden_layers", cls.n_layer)
        every = whole_number(config, "no_rope_layer_interval", 4)
        rotary = values_of_layers(config, "no_rope_layers", [(i + 1) % every != 0 for i in range(layers)])
        found = read_rope(config) | {"rotary_layers": rotary, "kv_heads": config.get("num_key_value_heads", 4)}
        if not config.get("use_sliding_window"):
            return found
        return found | read_windows(config, [not rotates for rotates in rotary])

    def published(self) -> dict[str, Any]:
        """Adds which layers rotate, and a null `pad_token_id`: its default may be outside the vocabulary."""
        rotary = self.rotary_layers or [True] * self.n_layer
        return super().published() | {"no_rope_layers": [int(rotates) for rotates in rotary], "pad_token_id": None}
