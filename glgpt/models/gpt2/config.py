"""GPT-2's configuration: the names, shapes and texture layout of its checkpoint's tensors, and its activations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from glgpt.errors import GlgptError, written
from glgpt.models.gpt2.names import NAMES as OWN_NAMES
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
    from glgpt.models.gpt2.network import GPT2Network

ACTIVATIONS = ("gelu_new", "gelu", "relu")
DEVIATION = 0.02  # standard deviation of fresh weights


@dataclass(frozen=True)
class GPT2Config(ModelConfig):
    """The fields of a Hugging Face GPT-2 `config.json` that change what is computed."""

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True

    model_type: ClassVar[str] = "gpt2"
    architecture: ClassVar[str] = "GPT2LMHeadModel"
    prefix: ClassVar[str] = "transformer."
    block_prefix: ClassVar[str] = "h.{}."
    positions: ClassVar[str] = "absolute"
    own_names: ClassVar[Mapping[str, Name]] = OWN_NAMES
    buffers: ClassVar[re.Pattern[str]] = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")  # causal masks
    embedding: ClassVar[str] = "wte.weight"
    # Upcasting attention to f32 would lose precision in the float64 reference.
    reference_options: ClassVar[dict[str, Any]] = {"attn_implementation": "eager", "reorder_and_upcast_attn": False}

    def __post_init__(self) -> None:
        inner = () if self.n_inner is None else ("n_inner",)
        check_sizes(self, ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", *inner))
        for name in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "tie_word_embeddings"):
            if not isinstance(getattr(self, name), bool):
                raise GlgptError(f"config: {name} is {written(getattr(self, name))}; it must be true or false")
        eps = self.layer_norm_epsilon
        if not isinstance(eps, (int, float)) or isinstance(eps, bool) or not 0 <= eps < 1:
            raise GlgptError(f"config: layer_norm_epsilon is {written(eps)}; it must be a number in [0, 1)")
        object.__setattr__(self, "layer_norm_epsilon", float(eps))  # JSON's 0 is an int, which GLSL would not take
        if self.n_embd % self.n_head:
            raise GlgptError(f"config: n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")
        if not isinstance(self.activation_function, str) or self.activation_function not in ACTIVATIONS:
            shown, known = written(self.activation_function), ", ".join(ACTIVATIONS)
            raise GlgptError(f"config: activation_function {shown} is not one of {known}")
        check_count(self)

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    @property
    def d_inner(self) -> int:
        """Width of the MLP's hidden layer: `n_inner`, or 4 n_embd if the checkpoint does not set it."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> GPT2Config:
        """Reads a parsed `config.json`; ignores keys that do not change the computation.

        Raises GlgptError for a field out of range or a decoder that attends to an encoder.
        """
        if config.get("add_cross_attention"):
            raise GlgptError("config: add_cross_attention is set; glgpt runs decoder-only GPT-2")
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in config.items() if k in known})

    @classmethod
    def sized(cls, vocab_size: int, n_positions: int, n_embd: int, n_layer: int, n_head: int) -> GPT2Config:
        """Returns a model of this size with GPT-2's usual settings."""
        return cls(vocab_size, n_positions, n_embd, n_layer, n_head)

    def to_dict(self, dropout: float = 0.0) -> dict[str, Any]:
        """Returns the `config.json` that transformers reads."""
        rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        return {"model_type": self.model_type, "architectures": [self.architecture]} | asdict(self) | rates

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """Every parameter of a checkpoint, in order of use.

        Linear weights are `[in, out]` (Hugging Face's Conv1D). Fresh weights are normal with standard deviation 0.02,
        divided by sqrt(2 n_layer) for those that write to the residual stream; gains are one and biases zero (Radford
        et al. 2019).
        """
        c, inner = self.n_embd, self.d_inner
        found = [
            Parameter("wte.weight", (self.vocab_size, c), True, True, None, 0.0, DEVIATION, True),
            Parameter("wpe.weight", (self.n_positions, c), False, False, None, 0.0, DEVIATION, True, table=True),
        ]
        for i in range(self.n_layer):
            found += self._norm(f"h.{i}.ln_1", i)
            found += self._linear(i, "attn.c_attn", c, 3 * c, Heads(1, 3 * self.n_head, self.d_head))
            found += self._linear(i, "attn.c_proj", c, c, Heads(0, self.n_head, self.d_head))
            found += self._norm(f"h.{i}.ln_2", i)
            found += self._linear(i, "mlp.c_fc", c, inner)
            found += self._linear(i, "mlp.c_proj", inner, c)
        found += self._norm("ln_f", None)
        if not self.tie_word_embeddings:
            found.append(Parameter("lm_head.weight", (self.vocab_size, c), True, True, None, 0.0, DEVIATION, True))
        return {p.name: p for p in found}

    def _norm(self, name: str, layer: int | None) -> list[Parameter]:
        shape = (self.n_embd,)
        return [
            Parameter(f"{name}.weight", shape, mean=1.0, layer=layer),
            Parameter(f"{name}.bias", shape, layer=layer),
        ]

    def _linear(self, layer: int, name: str, rows: int, cols: int, heads: Heads | None = None) -> list[Parameter]:
        to_stream, sensitive = name.endswith("c_proj"), name == "mlp.c_proj"
        deviation = DEVIATION / (2 * self.n_layer) ** 0.5 if to_stream else DEVIATION
        name, of_bias = f"h.{layer}.{name}", heads if heads and heads.axis == 1 else None
        return [
            Parameter(
                f"{name}.weight", (rows, cols), False, True, heads, 0.0, deviation, True, layer, sensitive=sensitive
            ),
            Parameter(f"{name}.bias", (cols,), heads=of_bias, layer=layer),
        ]

    @cached_property
    def activations(self) -> dict[str, Activation]:
        """Every activation, in order of computation."""
        c, head, inner = self.n_embd, (self.d_head, self.n_head), self.d_inner
        square = (self.n_positions, self.n_head)
        return activation_table(
            {
                "ln_1": ("rows", c),
                "attn.q": ("cache", *head),
                "attn.k": ("cache", *head),
                "attn.v": ("cache", *head),
                SCORES: ("scores", *square),
                PATTERN: ("pattern", *square),
                "attn.z": ("heads", *head),
                "attn.out": ("rows", c),
                "resid_mid": ("rows", c),
                "ln_2": ("rows", c),
                "mlp.pre": ("rows", inner),
                "mlp.act": ("rows", inner),
                "mlp.out": ("rows", c),
                RESID_POST: ("rows", c),
            },
            self,
        )

    @staticmethod
    def network_class() -> type[GPT2Network]:
        """Returns GPT-2's network, see `models.gpt2.network`."""
        from glgpt.models.gpt2.network import GPT2Network

        return GPT2Network

    @staticmethod
    def reference(network: Any, ids: list[int]) -> dict[str, Any]:
        """Returns every activation of a transformers GPT2LMHeadModel."""
        from glgpt.models.gpt2.reference import activations

        return activations(network, ids)


# The published GPT-2 models, by number of parameters
SIZES = {
    "124M": GPT2Config(),
    "355M": GPT2Config(n_embd=1024, n_layer=24, n_head=16),
    "774M": GPT2Config(n_embd=1280, n_layer=36, n_head=20),
    "1558M": GPT2Config(n_embd=1600, n_layer=48, n_head=25),
}
