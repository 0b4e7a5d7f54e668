"""Llama's configuration: the names, shapes and texture layout of its checkpoint's tensors, and its activations."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from glgpt.errors import GlgptError, written
from glgpt.models.llama.names import NAMES as OWN_NAMES
from glgpt.models.names import Name
from glgpt.models.spec import (
    PATTERN,
    RESID_POST,
    SCORES,
    Activation,
    Heads,
    ModelConfig,
    Parameter,
    activation_table,
    check_count,
    check_sizes,
)

if TYPE_CHECKING:
    from glgpt.models.llama.network import LlamaNetwork

DEVIATION = 0.02  # standard deviation of fresh weights
# names in config.json of fields that are named differently here
NAMES = {
    "n_positions": "max_position_embeddings",
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "rms_norm_eps",
}
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
UNSUPPORTED = {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"}  # field: the only supported value


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    """The fields of a Hugging Face Llama `config.json` that change the computation, in this project's names.

    The `n_head` query heads share `kv_heads` key and value heads; `head_dim` is the width of a head, by default `n_embd
    / n_head`. The defaults are those of transformers. `rope_scaling` holds Llama 3's four numbers (SCALING).
    """

    vocab_size: int = 32000
    n_positions: int = 2048
    n_embd: int = 4096
    n_layer: int = 32
    n_head: int = 32
    kv_heads: int | None = None
    n_inner: int = 11008
    head_dim: int | None = None
    layer_norm_epsilon: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: tuple[float, float, float, float] | None = None
    tie_word_embeddings: bool = False

    model_type: ClassVar[str] = "llama"
    architecture: ClassVar[str] = "LlamaForCausalLM"
    prefix: ClassVar[str] = "model."
    block_prefix: ClassVar[str] = "layers.{}."
    positions: ClassVar[str] = "rotary"
    own_names: ClassVar[Mapping[str, Name]] = OWN_NAMES
    buffers: ClassVar[re.Pattern[str]] = re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
    embedding: ClassVar[str] = "embed_tokens.weight"

    def __post_init__(self) -> None:
        check_sizes(
            self, ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_kv_head", "n_inner", "d_head")
        )
        if not isinstance(self.tie_word_embeddings, bool):
            found = written(self.tie_word_embeddings)
            raise GlgptError(f"config: tie_word_embeddings is {found}; it must be true or false")
        for name, low, high in (("layer_norm_epsilon", 0, 1), ("rope_theta", 1, math.inf)):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value < high:
                raise GlgptError(f"config: {NAMES.get(name, name)} is {written(value)}; it must be a number from {low}")
            object.__setattr__(self, name, float(value))  # JSON's 0 is an int, which GLSL would not take
        if self.rope_scaling is not None:
            object.__setattr__(self, "rope_scaling", tuple(map(float, self.rope_scaling)))
        if self.n_head % self.n_kv_head:
            raise GlgptError(f"config: {self.n_head} heads cannot share {self.n_kv_head} key and value heads evenly")
        if self.head_dim is None and self.n_embd % self.n_head:
            raise GlgptError(f"config: hidden_size {self.n_embd} is not a multiple of {self.n_head} heads")
        if self.d_head % 2:
            raise GlgptError(f"config: a head is {self.d_head} wide; rotary positions need an even width")
        check_count(self)

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head if self.head_dim is None else self.head_dim

    @property
    def n_kv_head(self) -> int:
        """Number of key and value heads."""
        return self.n_head if self.kv_heads is None else self.kv_heads

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> LlamaConfig:
        """Reads a parsed `config.json`; ignores keys that do not change the computation.

        Raises GlgptError for a field out of range, biases, another activation, or an unknown rotary scaling.
        """
        for name, only in UNSUPPORTED.items():
            if config.get(name, only) != only:
                raise GlgptError(f"config: {name} is {written(config[name])}; glgpt runs Llama with {only!r}")
        known = {"vocab_size", "head_dim", "rope_theta", "tie_word_embeddings"}
        fields = {name: config[name] for name in known if name in config}
        fields |= {own: config[published] for own, published in NAMES.items() if published in config}
        fields["kv_heads"] = config.get("num_key_value_heads")
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if not isinstance(rope, Mapping):
            raise GlgptError(f"config: rope_scaling is {written(rope)}; it must be an object")
        if "rope_theta" in rope:
            fields["rope_theta"] = rope["rope_theta"]
        return cls(**fields, rope_scaling=_scaling(rope))

    @classmethod
    def sized(cls, vocab_size: int, n_positions: int, n_embd: int, n_layer: int, n_head: int) -> LlamaConfig:
        """Returns a model of this size with Llama's usual settings: an MLP of 8/3 of the width, in whole texels."""
        inner = math.ceil(8 * n_embd / 3 / 4) * 4
        return cls(vocab_size, n_positions, n_embd, n_layer, n_head, n_inner=inner, tie_word_embeddings=True)

    def to_dict(self, dropout: float = 0.0) -> dict[str, Any]:
        """Returns the `config.json` that transformers reads; Llama has dropout in attention only."""
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": self.rope_theta}
        if self.rope_scaling:
            rope |= {"rope_type": "llama3"} | dict(zip(SCALING, self.rope_scaling, strict=True))
            rope["original_max_position_embeddings"] = int(self.rope_scaling[3])
        return {
            "model_type": self.model_type,
            "architectures": [self.architecture],
            "vocab_size": self.vocab_size,
            **{published: getattr(self, own) for own, published in NAMES.items()},
            "num_key_value_heads": self.n_kv_head,
            "head_dim": self.d_head,
            "hidden_act": "silu",
            "rope_theta": self.rope_theta,
            "rope_parameters": rope,
            "attention_dropout": dropout,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": self.tie_word_embeddings,
        }

    @cached_property
    def frequencies(self) -> tuple[float, ...]:
        """Radians by which each pair of a head's columns rotates from one position to the next (Su et al. 2021).

        Llama 3 divides low frequencies by `factor`, and blends those between its two bounds.
        """
        plain = [self.rope_theta ** (-2 * i / self.d_head) for i in range(self.d_head // 2)]
        if self.rope_scaling is None:
            return tuple(plain)
        factor, low, high, original = self.rope_scaling
        found = []
        for f in plain:
            turns = original * f / (2 * math.pi)  # in the context of the first training
            blend = min(1.0, max(0.0, (turns - low) / (high - low)))
            found.append(f * blend + f / factor * (1 - blend))
        return tuple(found)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Every parameter of a checkpoint, in order of use; linear weights are `[out, in]`."""
        c, d = self.n_embd, self.d_head
        found = [Parameter("embed_tokens.weight", (self.vocab_size, c), True, True, None, 0.0, DEVIATION, True)]
        for i in range(self.n_layer):
            found.append(Parameter(f"layers.{i}.input_layernorm.weight", (c,), mean=1.0, layer=i))
            for name, count in (("q", self.n_head), ("k", self.n_kv_head), ("v", self.n_kv_head)):
                found.append(self._linear(i, f"self_attn.{name}_proj", count * d, c, Heads(1, count, d)))
            found.append(self._linear(i, "self_attn.o_proj", c, self.n_head * d, Heads(0, self.n_head, d)))
            found.append(Parameter(f"layers.{i}.post_attention_layernorm.weight", (c,), mean=1.0, layer=i))
            found.append(self._linear(i, "mlp.gate_proj", self.n_inner, c))
            found.append(self._linear(i, "mlp.up_proj", self.n_inner, c))
            found.append(self._linear(i, "mlp.down_proj", c, self.n_inner))
        found.append(Parameter("norm.weight", (c,), mean=1.0))
        if not self.tie_word_embeddings:
            found.append(Parameter(self.head, (self.vocab_size, c), True, True, None, 0.0, DEVIATION, True))
        return {p.name: p for p in found}

    def _linear(self, layer: int, name: str, out: int, into: int, heads: Heads | None = None) -> Parameter:
        name = f"layers.{layer}.{name}.weight"
        sensitive = name.endswith(("v_proj.weight", "down_proj.weight"))
        return Parameter(name, (out, into), True, True, heads, 0.0, DEVIATION, True, layer, False, sensitive)

    @cached_property
    def activations(self) -> dict[str, Activation]:
        """Every activation, in order of computation; queries and keys are those after rotation."""
        c, d, inner = self.n_embd, self.d_head, self.n_inner
        square = (self.n_positions, self.n_head)
        return activation_table(
            {
                "ln_1": ("rows", c),
                "attn.q": ("cache", d, self.n_head),
                "attn.k": ("cache", d, self.n_kv_head),
                "attn.v": ("cache", d, self.n_kv_head),
                SCORES: ("scores", *square),
                PATTERN: ("pattern", *square),
                "attn.z": ("heads", d, self.n_head),
                "attn.out": ("rows", c),
                "resid_mid": ("rows", c),
                "ln_2": ("rows", c),
                "mlp.pre": ("rows", inner),
                "mlp.gate": ("rows", inner),
                "mlp.up": ("rows", inner),
                "mlp.act": ("rows", inner),
                "mlp.out": ("rows", c),
                RESID_POST: ("rows", c),
            },
            self,
        )

    @staticmethod
    def network_class() -> type[LlamaNetwork]:
        """Returns Llama's network, see `models.llama.network`."""
        from glgpt.models.llama.network import LlamaNetwork

        return LlamaNetwork

    @staticmethod
    def reference(network: Any, ids: list[int]) -> dict[str, Any]:
        """Returns every activation of a transformers LlamaForCausalLM."""
        from glgpt.models.llama.reference import activations

        return activations(network, ids)


def _scaling(rope: Mapping[str, Any]) -> tuple[float, float, float, float] | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise GlgptError(f"config: rope_type is {written(kind)}; glgpt runs 'default' and 'llama3'")
    values = [rope.get(name) for name in SCALING]
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < math.inf for v in values):
        raise GlgptError(f"config: llama3's rope scaling must give {', '.join(SCALING)} as numbers above 0")
    factor, low, high, original = (float(v) for v in values if v is not None)
    if low >= high:
        raise GlgptError(f"config: low_freq_factor {low:g} is not below high_freq_factor {high:g}")
    return factor, low, high, original
