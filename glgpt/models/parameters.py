"""Describes the parameters of a checkpoint: their names and shapes, and their matrices in textures.

A role is what a tensor is for, such as "q" or "down"; `ModelConfig.tensors` has a family's name for each role.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from glgpt.program.formats import FORMATS
from glgpt.program.layout import texels
from glgpt.program.quantised import Blocks
from glgpt.program.weight_formats import StoredFormats, WeightFormats

if TYPE_CHECKING:
    from glgpt.models.spec import ModelConfig

DEVIATION = 0.02  # standard deviation of new weights, before training


@dataclass(frozen=True)
class Heads:
    """An axis of a parameter's matrix that consists of heads: `count` heads of `width` values each.

    `axis` is 0 for rows and 1 for columns. In textures, every head is padded with zeros to whole texels, so that the
    padding in products is zero too.
    """

    axis: int
    count: int
    width: int
    # Number of kinds (3 for q, k and v) that alternate head by head in the checkpoint. In a texture, all heads of one
    # kind come before those of the next.
    alternating: int = 1

    @property
    def padded(self) -> int:
        """Returns the number of values per head in a texture."""
        return texels(self.width)

    def sorted(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Returns a matrix `[rows, columns]` with its columns sorted: all heads of the first kind, then of the next."""
        cube = matrix.reshape(len(matrix), -1, self.alternating, self.width)
        found: NDArray[Any] = cube.swapaxes(1, 2).reshape(matrix.shape)
        return found

    def alternated(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Reverses `sorted`."""
        cube = matrix.reshape(len(matrix), self.alternating, -1, self.width)
        found: NDArray[Any] = cube.swapaxes(1, 2).reshape(matrix.shape)
        return found


@dataclass(frozen=True)
class Parameter:
    """One parameter of a checkpoint, and the matrix stored in its texture.

    `name` is Hugging Face's name without the family's prefix, and `shape` is the shape in the checkpoint. If
    `transposed`, the texture holds the transpose; a vector is stored as one row. If `product`, the parameter is the
    right factor of a product, and rows of zeros pad it to a multiple of four rows. `heads` is the axis that consists of
    heads (None: no axis does). `mean` and `deviation` are those of the normal distribution of new values, before
    training. If `decayed`, AdamW applies weight decay. `layer` is the number of the parameter's block (None: outside
    the blocks). If `table`, the parameter has a row for each position. If `sensitive`, rounding to a few bits costs
    much accuracy, so q4 stores this parameter in eight bits, like the embedding and the head.
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
    sensitive: bool = False

    @property
    def count(self) -> int:
        """Returns the number of values."""
        return math.prod(self.shape)

    @property
    def unpadded(self) -> tuple[int, int]:
        """Returns the numbers of rows and columns of the matrix before heads are padded."""
        if len(self.shape) == 1:
            return 1, self.shape[0]
        rows, cols = self.shape
        return (cols, rows) if self.transposed else (rows, cols)

    @property
    def matrix(self) -> tuple[int, int]:
        """Returns the numbers of rows and columns of the matrix in the texture."""
        rows, cols = self.unpadded
        if self.heads is None:
            return rows, cols
        wide = self.heads.count * self.heads.padded
        return (wide, cols) if self.heads.axis == 0 else (rows, wide)

    @overload
    def arrange(self, array: NDArray[Any]) -> NDArray[Any]: ...

    @overload
    def arrange(self, array: Blocks) -> NDArray[Any] | Blocks: ...

    def arrange(self, array: NDArray[Any] | Blocks) -> NDArray[Any] | Blocks:
        """Returns the matrix `[rows, cols]` of the texture, from the array in the checkpoint.

        The result shares memory with the array if possible. `Blocks` (quantised blocks of a file) have the axes of the
        texture's matrix already, but their heads are not yet sorted and padded. The result for `Blocks` is `Blocks` if
        `keeps_blocks`, otherwise a float32 array.
        """
        if isinstance(array, Blocks):
            if self.keeps_blocks:
                arranged = self.heads is None or (self.heads.padded == self.heads.width and self.heads.alternating == 1)
                return array if arranged else array.with_columns(self._in_heads)
            return self._in_heads(array[:, :])
        return self._in_heads(array.T if self.transposed else array.reshape(self.unpadded))

    def format(self, formats: WeightFormats) -> str:
        """Returns the name of the texture's format; `formats` has the format or formats of the model's weights."""
        if isinstance(formats, StoredFormats):
            return formats.by_name[self.name]
        fmt = FORMATS[formats]
        if not self.product:
            return fmt.positions if self.table else "f32"
        outer = fmt.outer if self.layer is None or self.sensitive else ""
        return outer or fmt.name

    @property
    def keeps_blocks(self) -> bool:
        """True if `arrange` adds no rows of padding to heads; such rows would divide quantised blocks."""
        return self.heads is None or self.heads.axis == 1 or self.heads.padded == self.heads.width

    def _in_heads(self, found: NDArray[Any]) -> NDArray[Any]:
        """Returns a matrix with its heads sorted and padded.

        The matrix holds the parameter's values or levels (quantised integers). Or it holds the scales or the minima of
        quantised blocks, and then has fewer rows.
        """
        if self.heads is not None and self.heads.alternating > 1:
            found = self.heads.sorted(found)
        if self.heads is None or self.heads.padded == self.heads.width:
            return found
        split = (self.heads.count, self.heads.width)
        pad = (0, self.heads.padded - self.heads.width)
        if self.heads.axis == 0:
            return np.pad(found.reshape(*split, -1), ((0, 0), pad, (0, 0))).reshape(self.matrix)
        return np.pad(found.reshape(-1, *split), ((0, 0), (0, 0), pad)).reshape(-1, self.matrix[1])

    def restore(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Reverses `arrange`: returns the array of the checkpoint from the matrix of the texture.

        The matrix may have padding after the last row.
        """
        rows, cols = self.matrix
        found = matrix[:rows, :cols]
        if self.heads is not None and self.heads.padded != self.heads.width:
            split = (self.heads.count, self.heads.padded)
            if self.heads.axis == 0:
                found = found.reshape(*split, -1)[:, : self.heads.width]
            else:
                found = found.reshape(-1, *split)[:, :, : self.heads.width]
            found = found.reshape(self.unpadded)
        if self.heads is not None and self.heads.alternating > 1:
            found = self.heads.alternated(found)
        return np.ascontiguousarray(found.T if self.transposed else found.reshape(self.shape))

    def used(self, rows: int, cols: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns which rows and which columns of a matrix `[rows, cols]` in a texture are not padding.

        The result is a pair (period, number in use) for the rows, and such a pair for the columns: of every `period`
        rows or columns, the first `number in use` are not padding.
        """
        by_row, by_col = (rows, self.unpadded[0]), (cols, cols)
        if self.heads is None:
            return by_row, by_col
        period = (self.heads.padded, self.heads.width)
        return (period, by_col) if self.heads.axis == 0 else (by_row, period)


@dataclass(frozen=True)
class FileTensor:
    """A tensor in a checkpoint file: it holds one parameter, or the rows of several parameters one after the other."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape in the checkpoint."""
        rows = sum(p.shape[0] for p in self.parameters)
        return rows, *self.parameters[0].shape[1:]

    @property
    def rows(self) -> dict[str, slice]:
        """Returns the rows of the tensor that hold each parameter, by the parameter's name."""
        ends = [*accumulate(p.shape[0] for p in self.parameters)]
        return {p.name: slice(end - p.shape[0], end) for p, end in zip(self.parameters, ends, strict=True)}

    @property
    def divided(self) -> bool:
        """True if the tensor holds several parameters."""
        return len(self.parameters) > 1

    def joined(self, read: Callable[[str], NDArray[Any]]) -> NDArray[Any]:
        """Returns the tensor's array; `read` returns the array of a parameter, given its name."""
        arrays = [read(p.name) for p in self.parameters]
        return np.concatenate(arrays) if self.divided else arrays[0]


def file_tensor_table(config: ModelConfig) -> dict[str, FileTensor]:
    """Returns every tensor of a checkpoint by its name, in order of use."""
    whole = {
        f"{config.tensor(role, i)}.{kind}": f"{fused.format(i)}.{kind}"
        for i in range(config.n_layer)
        for fused, roles in config.fused.items()
        for role in roles
        for kind in ("weight", "bias")
    }
    found: dict[str, list[Parameter]] = {}
    for name, parameter in config.parameters.items():
        found.setdefault(whole.get(name, name), []).append(parameter)
    return {name: FileTensor(name, tuple(parameters)) for name, parameters in found.items()}


def parameter_table(config: ModelConfig) -> dict[str, Parameter]:
    """Returns every parameter of a checkpoint, by name, in order of use.

    Before training, weights are normally distributed with standard deviation 0.02, gains are one and biases are zero
    (Radford et al. 2019).
    """
    c, n = config, config.n_embd
    found = [Parameter(c.embedding, (c.vocab_size, n), True, True, None, 0.0, DEVIATION, True)]
    if c.positions == "absolute":
        name = f"{c.tensor('positions')}.weight"
        found.append(Parameter(name, (c.n_positions, n), False, False, None, 0.0, DEVIATION, True, table=True))
    for i in range(c.n_layer):
        found += _norm(c, "norm_1", i)
        for role, count in _attention_inputs(c).items():
            heads = Heads(1, count, c.d_head, 3 if c.interleaved_heads else 1)
            found += _linear(c, role, i, (n, count * c.d_head), heads, bias=c.qkv_bias)
        found += _qk_norms(c, i)
        found += _linear(c, "o", i, (c.n_head * c.d_head, n), Heads(0, c.n_head, c.d_head), bias=c.out_bias)
        found += _norm(c, "post_1", i)
        found += _norm(c, "norm_2", i)
        for role in ("gate", "up") if c.gated else ("up",):
            found += _linear(c, role, i, (n, c.d_inner), bias=c.mlp_bias)
        found += _linear(c, "down", i, (c.d_inner, n), bias=c.mlp_bias)
        found += _norm(c, "post_2", i)
    found += _norm(c, "norm", None)
    if not c.tie_word_embeddings:
        found.append(Parameter(c.head, (c.vocab_size, n), True, True, None, 0.0, DEVIATION, True))
    return {p.name: p for p in found}


def _attention_inputs(config: ModelConfig) -> dict[str, int]:
    """Returns the linear layers that make queries, keys and values: role -> number of heads in the output."""
    heads, kv = config.n_head, config.n_kv_head
    return {"qkv": heads + 2 * kv} if "qkv" in config.tensors else {"q": heads, "k": kv, "v": kv}


def _norm(config: ModelConfig, role: str, layer: int | None) -> list[Parameter]:
    if role not in config.tensors:
        return []
    name, shape = config.tensor(role, "" if layer is None else layer), (config.n_embd,)
    gain = Parameter(f"{name}.weight", shape, mean=1.0 - config.gain_offset, layer=layer)
    return [gain, Parameter(f"{name}.bias", shape, layer=layer)] if config.norm == "layer" else [gain]


def _qk_norms(config: ModelConfig, layer: int) -> list[Parameter]:
    """Returns the gains of the norms of queries and keys; each is as wide as one head, or as all heads together."""
    found, d, mean = [], config.d_head, 1.0 - config.gain_offset
    for role, count in (("q_norm", config.n_head), ("k_norm", config.n_kv_head)) if config.qk_norm else ():
        heads = Heads(1, count, d) if config.qk_norm == "width" else None
        shape = (count * d,) if heads else (d,)
        found.append(Parameter(f"{config.tensor(role, layer)}.weight", shape, heads=heads, mean=mean, layer=layer))
    return found


def _linear(
    config: ModelConfig, role: str, layer: int, shape: tuple[int, int], heads: Heads | None = None, bias: bool = False
) -> list[Parameter]:
    """Returns the weight and, if `bias`, the bias of a linear layer with shape[0] inputs and shape[1] outputs."""
    to_stream = role in ("o", "down") and config.scaled_outputs
    deviation = DEVIATION / (2 * config.n_layer) ** 0.5 if to_stream else DEVIATION
    name, (into, out) = config.tensor(role, layer), shape
    stored = (into, out) if config.input_first else (out, into)
    weight = Parameter(
        f"{name}.weight", stored, not config.input_first, True, heads, 0.0, deviation, True, layer,
        sensitive=role in ("v", "down"),
    )  # fmt: skip
    of_bias = heads if heads and heads.axis == 1 else None
    return [weight, Parameter(f"{name}.bias", (out,), heads=of_bias, layer=layer)] if bias else [weight]
