"""The interface of a model family: parameters, activations, its checkpoint's names, its network.

Loading, saving, initialisation, weight decay, capture, dumps, comparison, export and benchmarks loop over this spec and
do not depend on a family.
"""

from __future__ import annotations

import copy
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError, written
from glgpt.models.names import LOGITS_FROM, SHARED, Name
from glgpt.program.formats import Floats
from glgpt.program.layout import texels

if TYPE_CHECKING:
    from glgpt.models.network import Batch, Network, SideBySide
    from glgpt.models.part import Part
    from glgpt.program.kernel import Kernel
    from glgpt.program.recorder import Recorder

MAX_LAYERS = 1000  # GPT-2 XL has 48; a program lists the passes of every layer
MAX_SIZE = 1 << 24  # maximum vocabulary, width and context
MAX_PARAMETERS = 1 << 34  # ten times as many as GPT-2 XL; 64 GiB in f32

EMBED, FINAL_NORM, LOGITS = "embed", "ln_f", "logits"
FIRST_NORM = "ln_1"  # in each block
Q, K, V = "attn.q", "attn.k", "attn.v"
SCORES, PATTERN, RESID_POST = "attn.scores", "attn.pattern", "resid_post"


def in_block(layer: int | str, name: str) -> str:
    """Returns the dotted name of an activation of one block, such as `h.0.attn.pattern`, in every family."""
    return f"h.{layer}.{name}"


def part_of(name: str) -> str:
    """Reverses `in_block`: returns `attn.pattern` for `h.0.attn.pattern`, and other names unchanged."""
    return re.sub(r"^h\.\d+\.", "", name)


DIMS = {"scores": "head, T, T", "pattern": "head, T, T", "cache": "head, T, d_head"}  # other kinds: T, width
PER_HEAD = {Q: "cache", K: "cache", V: "cache", SCORES: "scores", PATTERN: "pattern"}


def dims_of(name: str) -> str:
    """Returns a description of an activation's natural shape, for arrays that come without a model."""
    return DIMS.get(PER_HEAD.get(part_of(name), ""), "T, width")


@dataclass(frozen=True)
class Heads:
    """An axis of a parameter's matrix that consists of heads: `count` heads of `width` values each.

    In textures every head is padded with zeros to whole texels; the padding stays zero through every product.
    """

    axis: int
    count: int
    width: int

    @property
    def padded(self) -> int:
        """Values per head in a texture."""
        return texels(self.width)


@dataclass(frozen=True)
class Parameter:
    """One tensor of a checkpoint, and the matrix stored in its texture.

    `name` is Hugging Face's without the family's prefix, `shape` the checkpoint's. If `transposed`, the texture holds
    the transpose; a vector is stored as one row. `product`: it is the right factor of a product, and its rows are
    padded to a multiple of four. `table`: one row is read for each position. Fresh values are normal with `mean` and
    `deviation`. `decayed`: AdamW applies weight decay to it. `layer` is the block that it belongs to.
    """

    name: str
    shape: tuple[int, ...]
    transposed: bool = False
    product: bool = False
    heads: Heads | None = None
    mean: float = 0.0
    deviation: float = 0.0
    decayed: bool = False
    layer: int | None = None
    table: bool = False

    @property
    def count(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    @property
    def unpadded(self) -> tuple[int, int]:
        """Rows and columns of the matrix before heads are padded."""
        if len(self.shape) == 1:
            return 1, self.shape[0]
        rows, cols = self.shape
        return (cols, rows) if self.transposed else (rows, cols)

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of the matrix in the texture."""
        rows, cols = self.unpadded
        if self.heads is None:
            return rows, cols
        wide = self.heads.count * self.heads.padded
        return (wide, cols) if self.heads.axis == 0 else (rows, wide)

    def arrange(self, array: NDArray[Any]) -> NDArray[Any]:
        """Returns the texture's matrix `[rows, cols]` from the checkpoint's array; they share memory if possible."""
        found = array.T if self.transposed else array.reshape(self.unpadded)
        if self.heads is None or self.heads.padded == self.heads.width:
            return found
        split = (self.heads.count, self.heads.width)
        pad = (0, self.heads.padded - self.heads.width)
        if self.heads.axis == 0:
            return np.pad(found.reshape(*split, -1), ((0, 0), pad, (0, 0))).reshape(self.matrix)
        return np.pad(found.reshape(-1, *split), ((0, 0), (0, 0), pad)).reshape(self.matrix)

    def restore(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Returns the checkpoint's array from the texture's matrix, which may have padding rows: undoes `arrange`."""
        rows, cols = self.matrix
        found = matrix[:rows, :cols]
        if self.heads is not None and self.heads.padded != self.heads.width:
            split = (self.heads.count, self.heads.padded)
            if self.heads.axis == 0:
                found = found.reshape(*split, -1)[:, : self.heads.width]
            else:
                found = found.reshape(-1, *split)[:, :, : self.heads.width]
            found = found.reshape(self.unpadded)
        return np.ascontiguousarray(found.T if self.transposed else found.reshape(self.shape))

    def used(self, rows: int, cols: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns (period, values per period that are not padding) for the rows and for the columns of a texture."""
        by_row, by_col = (rows, self.unpadded[0]), (cols, cols)
        if self.heads is None:
            return by_row, by_col
        period = (self.heads.padded, self.heads.width)
        return (period, by_col) if self.heads.axis == 0 else (by_row, period)


@dataclass(frozen=True)
class Activation:
    """One named activation and its place in its matrix.

    `kind` is `rows` (a row for each token), `heads` (the same with each head padded to whole texels), `cache` (a row
    for each position with padded heads), or `scores` and `pattern` (rows are token * heads + head and columns are
    keys). `width` is the number of values of a row, or of a head if `kind` is `heads` or `cache`.
    """

    name: str
    kind: str
    width: int
    heads: int = 1

    @property
    def layer(self) -> int | None:
        """The block it is in; None outside the blocks."""
        block = re.match(r"h\.(\d+)\.", self.name)
        return int(block[1]) if block else None

    @property
    def added(self) -> bool:
        """True if a block adds it to the residual stream; such names end in `.out` in every family."""
        return self.layer is not None and self.name.endswith(".out")

    @property
    def row_width(self) -> int:
        """Number of values of a row without padding, including all heads that are side by side."""
        return self.width * (self.heads if self.kind in ("heads", "cache") else 1)

    @property
    def square(self) -> bool:
        """True if its columns are tokens too."""
        return self.kind in ("scores", "pattern")

    @property
    def per_head(self) -> bool:
        """True if its natural shape begins with the heads."""
        return self.square or self.kind == "cache"

    @property
    def dims(self) -> str:
        """A description of its natural shape: `head, T, T`, `head, T, d_head` or `T, width`."""
        return DIMS.get(self.kind, "T, width")

    def shape(self, tokens: int) -> tuple[int, ...]:
        """Returns its natural shape for a text of this many tokens."""
        if self.square:
            return self.heads, tokens, tokens
        return (self.heads, tokens, self.width) if self.kind == "cache" else (tokens, self.row_width)

    def natural(self, matrix: Floats, start: int, valid: int, total: int) -> Floats:
        """Returns rows of tokens start .. start + valid - 1 of `total`, in the natural shape without padding.

        Scores and patterns become `[heads, valid, total]`, caches `[heads, valid, d_head]`, others `[valid, width]`.
        """
        cube: Floats
        if self.square:
            cube = matrix.reshape(-1, self.heads, matrix.shape[1])[:valid, :, :total].transpose(1, 0, 2).copy()
            if self.kind == "scores":
                beyond = np.arange(total) > start + np.arange(valid)[:, None]
                cube[:, beyond] = -np.inf
            return cube
        if self.kind == "cache":
            rows = matrix[start : start + valid]
            cube = rows.reshape(len(rows), self.heads, -1)[:, :, : self.width].transpose(1, 0, 2)
            return cube
        rows = matrix[:valid]
        if self.kind == "heads":
            rows = rows.reshape(len(rows), self.heads, -1)[:, :, : self.width].reshape(len(rows), -1)
        return rows


class ModelConfig(ABC):
    """A model of one family: the fields of its `config.json` that change the computation, and what follows from them.

    Subclasses are frozen dataclasses named `CONFIG` in `glgpt.models.<model_type>`.
    """

    model_type: ClassVar[str]  # in config.json
    architecture: ClassVar[str]  # class in transformers
    prefix: ClassVar[str]  # of every tensor in a checkpoint except the head
    block_prefix: ClassVar[str]  # of every parameter of a block; {} stands for the block's number
    positions: ClassVar[str]  # "absolute": added to the embedding; "rotary": rotate queries and keys
    own_names: ClassVar[Mapping[str, Name]]  # in addition to `glgpt.models.names.SHARED`
    buffers: ClassVar[re.Pattern[str]]  # tensors of a checkpoint that are not parameters
    head: ClassVar[str] = "lm_head.weight"
    embedding: ClassVar[str]  # of tokens; also the head if they are tied

    # Fields or properties of every family.
    vocab_size: int
    n_positions: int
    n_embd: int
    n_layer: int
    n_head: int
    tie_word_embeddings: bool

    @cached_property
    def context(self) -> int:
        """Positions that a program's caches hold: the model's `n_positions`, or fewer (`with_context`).

        It does not change results, and is part of neither `fields` nor equality.
        """
        return self.n_positions

    def with_context(self, positions: int) -> ModelConfig:
        """Returns the same model for programs whose caches hold this many positions, at most `n_positions`."""
        config = copy.copy(self)
        config.__dict__["context"] = min(positions, self.n_positions)
        return config

    @property
    @abstractmethod
    def d_head(self) -> int:
        """Width of one attention head."""

    @property
    def n_kv_head(self) -> int:
        """Number of key and value heads."""
        return self.n_head

    @cached_property
    @abstractmethod
    def parameters(self) -> dict[str, Parameter]:
        """Every parameter that a checkpoint must hold, by name, in order of use."""

    @cached_property
    @abstractmethod
    def activations(self) -> dict[str, Activation]:
        """Every activation, in order of computation."""

    @staticmethod
    @abstractmethod
    def network_class() -> type[Network]:
        """Returns the family's `Network`, imported on demand: reading a configuration needs no op."""

    def network(
        self,
        rec: Recorder,
        kernel: Kernel,
        dtype: str = "f32",
        names: Container[str] = (),
        batch: Batch | SideBySide | None = None,
        role: str = "weight",
        part: Part | None = None,
    ) -> Network:
        """Returns the family's network over a recorder; see `glgpt.models.network.Network`."""
        return self.network_class()(rec, self, kernel, dtype, names, batch, role, part)

    @classmethod
    @abstractmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Reads a parsed `config.json`. Raises GlgptError for an unsupported field."""

    @classmethod
    @abstractmethod
    def sized(cls, vocab_size: int, n_positions: int, n_embd: int, n_layer: int, n_head: int) -> ModelConfig:
        """Returns a model of this size with the family's usual settings."""

    @abstractmethod
    def to_dict(self, dropout: float = 0.0) -> dict[str, Any]:
        """Returns the `config.json` that transformers reads."""

    @staticmethod
    @abstractmethod
    def reference(network: Any, ids: list[int]) -> dict[str, NDArray[np.float64]]:
        """Returns every activation that a transformers model of this family computes, in natural shapes."""

    reference_options: ClassVar[dict[str, Any]] = {"attn_implementation": "eager"}  # for transformers' from_pretrained

    @property
    def tied(self) -> dict[str, str]:
        """Tensors of a checkpoint that repeat a parameter: name -> the parameter."""
        return {self.head: self.embedding} if self.tie_word_embeddings else {}

    @property
    def output(self) -> str:
        """The parameter that turns the last norm into logits."""
        return self.tied.get(self.head, self.head)

    @property
    def parameter_count(self) -> int:
        """Number of learned values; a tied head counts once."""
        return sum(p.count for p in self.parameters.values())

    @property
    def block_flops(self) -> int:
        """Floating-point operations for a token in the products of all blocks, without attention and head."""
        return 2 * sum(p.count for p in self.parameters.values() if p.product and p.layer is not None)

    @property
    def head_flops(self) -> int:
        """Floating-point operations for the logits of a token."""
        return 2 * self.parameters[self.output].count

    def training_flops(self, context: int) -> int:
        """Returns the operations for a token in a training step: products and attention, forward and backward.

        The backward pass takes twice the operations of the forward pass: 6 N for the N weights of products and 12 L W T
        for attention (Kaplan et al. 2020).
        """
        attention = 12 * self.n_layer * self.n_head * self.d_head * context
        return 3 * (self.block_flops + self.head_flops) + attention

    @property
    def names(self) -> dict[str, Name]:
        """Caption and explanation of each activation, parameter, state and pass; {} stands for a block's number."""
        found = SHARED | dict(self.own_names)
        if self.tie_word_embeddings:
            title, about = found[self.embedding]
            found[self.embedding] = Name(title, f"{about}; also {LOGITS_FROM}")
        return found

    def template(self, parameter: Parameter) -> str:
        """Returns a parameter's name with {} as its block's number."""
        if parameter.layer is None:
            return parameter.name
        return self.block_prefix + parameter.name.removeprefix(self.block_prefix.format(parameter.layer))

    def stored_name(self, name: str) -> str:
        """Returns a parameter's name in a checkpoint file."""
        return name if name == self.head else self.prefix + name

    def fields(self) -> dict[str, Any]:
        """Returns everything that determines results, and the family's name; `from_fields` reads it."""
        own: Any = self  # a dataclass, as every family's is
        return {"model_type": self.model_type, **asdict(own)}

    def shape(self) -> dict[str, int]:
        """Returns the sizes that every family has, by name."""
        names = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_kv_head", "d_head")
        return {name: getattr(self, name) for name in names}

    def stream(self) -> list[str]:
        """Returns the residual stream's names: after the embedding and after each block."""
        return [EMBED, *(in_block(i, RESID_POST) for i in range(self.n_layer))]

    def patterns(self) -> list[str]:
        """Returns the names of the attention patterns, one for each layer."""
        return [in_block(i, PATTERN) for i in range(self.n_layer)]


def check_sizes(config: ModelConfig, names: tuple[str, ...]) -> None:
    """Raises GlgptError if a size is not a positive integer or too large, or there are too many layers."""
    for name in names:
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise GlgptError(f"config: {name} is {written(value)}; it must be a positive integer")
        if value > MAX_SIZE:
            raise GlgptError(f"config: {name} is {written(value)}; at most {MAX_SIZE} is supported")
    if config.n_layer > MAX_LAYERS:
        raise GlgptError(f"config: n_layer is {config.n_layer}; at most {MAX_LAYERS} are supported")


def check_count(config: ModelConfig) -> None:
    """Raises GlgptError for a model with more parameters than supported."""
    if config.parameter_count > MAX_PARAMETERS:
        count = f"{config.parameter_count:,} parameters"
        raise GlgptError(f"config: these sizes make {count}; at most {MAX_PARAMETERS:,} are supported")


def activation_table(block: Mapping[str, tuple[Any, ...]], config: ModelConfig) -> dict[str, Activation]:
    """Returns the activations of a decoder whose blocks have these: name -> (kind, width, heads)."""
    table: dict[str, tuple[Any, ...]] = {EMBED: ("rows", config.n_embd)}
    for i in range(config.n_layer):
        table |= {in_block(i, name): about for name, about in block.items()}
    table |= {FINAL_NORM: ("rows", config.n_embd), LOGITS: ("rows", config.vocab_size)}
    return {name: Activation(name, *about) for name, about in table.items()}
