"""Gemma 3 for text (Gemma Team 2025): Gemma 2 without soft caps, but with a QK norm and two rotary bases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from glgpt.errors import GlgptError
from glgpt.models.families.gemma2 import Gemma2Config
from glgpt.models.rotary import read_rope
from glgpt.models.spec import WHOLE, WINDOWED


@dataclass(frozen=True)
class Gemma3Config(Gemma2Config):
    """The configuration of a Gemma 3 text model; the defaults are those of transformers."""

    vocab_size: int = 262208
    n_positions: int = 131072
    rope_theta: float = 1000000.0
    local_rope_theta: float | None = 10000.0
    qk_norm: str = "head"

    model_type: ClassVar[str] = "gemma3_text"
    architecture: ClassVar[str] = "Gemma3ForCausalLM"
    every: ClassVar[int] = 6
    caps: ClassVar[Mapping[str, float]] = {}
    tensors: ClassVar[Mapping[str, str]] = {
        **Gemma2Config.tensors,
        "q_norm": "layers.{}.self_attn.q_norm",
        "k_norm": "layers.{}.self_attn.k_norm",
    }

    @classmethod
    def rope(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Reads the rotary positions of layers without a window, and those of layers with a window.

        Raises GlgptError if those of layers with a window are scaled.
        """
        rope = config.get("rope_parameters")
        if not isinstance(rope, Mapping) or not isinstance(rope.get(WHOLE), Mapping):  # as in early files
            return read_rope(config) | {"local_rope_theta": config.get("rope_local_base_freq", cls.local_rope_theta)}
        local = rope.get(WINDOWED) or {}
        if (kind := read_rope({"rope_parameters": local})["rope_type"]) != "default":
            raise GlgptError(f"config: rope_parameters has {kind} for {WINDOWED}; glgpt runs only 'default' there")
        local_theta = local.get("rope_theta", cls.local_rope_theta)
        return read_rope({**config, "rope_parameters": rope[WHOLE]}) | {"local_rope_theta": local_theta}

    def published(self) -> dict[str, Any]:
        """Returns the entries of Gemma 2, but with rotary positions for each type of layer."""
        found = super().published()
        local = {"rope_type": "default", "rope_theta": self.local_rope_theta}
        return found | {"rope_parameters": {WHOLE: found["rope_parameters"], WINDOWED: local}}
