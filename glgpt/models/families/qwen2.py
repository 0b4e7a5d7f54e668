"""Qwen2 and Qwen2.5 (Yang et al. 2024): a Llama whose queries, keys and values have biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from glgpt.models.families.llama import KEYS_WITHOUT_BIASES, LlamaConfig
from glgpt.models.rotary import read_rope
from glgpt.models.spec import layer_count, read_windows, whole_number


@dataclass(frozen=True)
class Qwen2Config(LlamaConfig):
    """The configuration of a Qwen2 model; the defaults are those of transformers."""

    vocab_size: int = 151936
    n_positions: int = 32768
    n_inner: int | None = 22016
    qkv_bias: bool = True

    model_type: ClassVar[str] = "qwen2"
    architecture: ClassVar[str] = "Qwen2ForCausalLM"
    keys: ClassVar[Mapping[str, str]] = KEYS_WITHOUT_BIASES

    @classmethod
    def more(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the rotary positions and, if `use_sliding_window` is set, the window.

        Without `layer_types`, the layers from `max_window_layers` on have the window.
        """
        found = read_rope(config)
        if not config.get("use_sliding_window"):
            return found
        first, layers = config.get("max_window_layers"), layer_count(config, "num_hidden_layers", cls.n_layer)
        first = whole_number(config, "max_window_layers", 28) if first != 0 else 0
        return found | read_windows(config, [i >= first for i in range(layers)])
