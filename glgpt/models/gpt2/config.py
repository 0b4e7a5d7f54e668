"""GPT-2's configuration, and its checkpoint's names, shapes and arrangement in textures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError, written
from glgpt.program.layout import texels

MOST_LAYERS = 1000  # far beyond GPT-2 XL's 48; a program has each layer's passes written out
MOST_SIZE = 1 << 24  # of a vocabulary, a width, a context
MOST_PARAMETERS = 1 << 34  # ten times GPT-2 XL's, 64 GiB in f32
ACTIVATIONS = ("gelu_new", "gelu", "relu")


@dataclass(frozen=True)
class GPT2Config:
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

    def __post_init__(self) -> None:
        for name in ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "d_inner"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise GlgptError(f"config: {name} is {written(value)}; it must be a positive whole number")
            if value > MOST_SIZE:
                raise GlgptError(f"config: {name} is {written(value)}; at most {MOST_SIZE} is supported")
        if self.n_layer > MOST_LAYERS:
            raise GlgptError(f"config: n_layer is {self.n_layer}; at most {MOST_LAYERS} are supported")
        for name in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "tie_word_embeddings"):
            if not isinstance(getattr(self, name), bool):
                raise GlgptError(f"config: {name} is {written(getattr(self, name))}; it must be true or false")
        eps = self.layer_norm_epsilon
        if not isinstance(eps, (int, float)) or isinstance(eps, bool) or not 0 <= eps < 1:
            raise GlgptError(f"config: layer_norm_epsilon is {written(eps)}; it must be a number from 0 to 1")
        object.__setattr__(self, "layer_norm_epsilon", float(eps))  # JSON's 0 is an int, which GLSL would not take
        if self.n_embd % self.n_head:
            raise GlgptError(f"config: n_embd {self.n_embd} is not a multiple of n_head {self.n_head}")
        if not isinstance(self.activation_function, str) or self.activation_function not in ACTIVATIONS:
            shown, known = written(self.activation_function), ", ".join(ACTIVATIONS)
            raise GlgptError(f"config: activation_function {shown} is not one of {known}")
        count = parameter_count(self)
        if count > MOST_PARAMETERS:
            raise GlgptError(
                f"config: such a model has {count:,} parameters; at most {MOST_PARAMETERS:,} are supported"
            )

    @property
    def d_head(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    @property
    def d_inner(self) -> int:
        """Width of the MLP's hidden layer: `n_inner`, or 4 n_embd where the checkpoint leaves it out."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> GPT2Config:
        """Reads a parsed `config.json`; keys that change nothing here are passed over.

        Raises GlgptError for another architecture or a field out of range.
        """
        if config.get("model_type") != "gpt2":
            raise GlgptError(
                f"config: model_type is {written(config.get('model_type'))}; glgpt runs 'gpt2' checkpoints"
            )
        if config.get("add_cross_attention"):
            raise GlgptError("config: add_cross_attention is set; glgpt runs decoder-only GPT-2")
        known = {f.name for f in fields(cls)}
        return cls(**{k: v for k, v in config.items() if k in known})


def parameters(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Every parameter a checkpoint must hold, in the order of its use: Hugging Face name without `transformer.`, shape.

    Linear weights are `[in, out]` (Hugging Face's Conv1D). An untied head adds `lm_head.weight`, `[vocab, n_embd]`.
    """
    c, inner = config.n_embd, config.d_inner
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (config.vocab_size, c), "wpe.weight": (config.n_positions, c)}
    for i in range(config.n_layer):
        h = f"h.{i}."
        shapes |= {
            h + "ln_1.weight": (c,),
            h + "ln_1.bias": (c,),
            h + "attn.c_attn.weight": (c, 3 * c),
            h + "attn.c_attn.bias": (3 * c,),
            h + "attn.c_proj.weight": (c, c),
            h + "attn.c_proj.bias": (c,),
            h + "ln_2.weight": (c,),
            h + "ln_2.bias": (c,),
            h + "mlp.c_fc.weight": (c, inner),
            h + "mlp.c_fc.bias": (inner,),
            h + "mlp.c_proj.weight": (inner, c),
            h + "mlp.c_proj.bias": (c,),
        }
    shapes |= {"ln_f.weight": (c,), "ln_f.bias": (c,)}
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, c)
    return shapes


def parameter_count(config: GPT2Config) -> int:
    """How many numbers a model has; a tied head counts once."""
    return sum(math.prod(shape) for shape in parameters(config).values())


def activation_names(n_layer: int) -> list[str]:
    """The dotted name of every intermediate, in the order they are computed."""
    block = (
        "ln_1 attn.q attn.k attn.v attn.scores attn.pattern attn.z attn.out resid_mid "
        "ln_2 mlp.pre mlp.act mlp.out resid_post"
    ).split()
    return ["embed", *(f"h.{i}.{name}" for i in range(n_layer) for name in block), "ln_f", "logits"]


def arrange(config: GPT2Config, name: str, array: NDArray[Any]) -> NDArray[Any]:
    """A checkpoint's array as the matrix its texture holds.

    Rows are padded to a multiple of four and heads to whole texels, both with zeros that stay zero through every
    product; embeddings that meet a product (`wte`, `lm_head`) are turned to `[n_embd, vocab]`; vectors become one row.
    """
    d, padded = config.d_head, texels(config.d_head)
    if name.endswith(("wte.weight", "lm_head.weight")):
        array = array.T
    if d != padded and ".attn.c_attn." in name:
        heads = array.reshape(-1, 3 * config.n_head, d)
        array = np.pad(heads, ((0, 0), (0, 0), (0, padded - d))).reshape(len(heads), -1)
    if d != padded and name.endswith(".attn.c_proj.weight"):
        heads = array.reshape(config.n_head, d, -1)
        array = np.pad(heads, ((0, 0), (0, padded - d), (0, 0))).reshape(config.n_head * padded, -1)
    if array.ndim == 1:
        array = array[None, :]
    if len(array) % 4 and len(array) > 1 and not name.endswith("wpe.weight"):
        array = np.pad(array, ((0, -len(array) % 4), (0, 0)))
    return array


def restore(config: GPT2Config, name: str, matrix: NDArray[Any]) -> NDArray[Any]:
    """The checkpoint's array from the matrix its texture holds: what `arrange` did, undone."""
    d, padded, shape = config.d_head, texels(config.d_head), parameters(config)[name]
    if name.endswith(("wte.weight", "lm_head.weight")):
        return np.ascontiguousarray(matrix[: config.n_embd].T)
    if d != padded and ".attn.c_attn." in name:
        matrix = matrix.reshape(len(matrix), 3 * config.n_head, padded)[:, :, :d].reshape(len(matrix), -1)
    if d != padded and name.endswith(".attn.c_proj.weight"):
        matrix = matrix[: config.n_head * padded].reshape(config.n_head, padded, -1)[:, :d].reshape(config.n_embd, -1)
    return np.ascontiguousarray(matrix[: shape[0]] if len(shape) > 1 else matrix[0])
