"""Decodes a tensor of a GGUF file, and orders its rows and axes as in a Hugging Face checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.gguf.block_types import GgufBlocks, TensorType

CHUNK = 1 << 20  # number of values that are decoded at once; keeps temporary arrays at a few MB


Axes = tuple[int, int, int, int]


@dataclass(frozen=True)
class GgufTensor:
    """Locates a tensor in a file, and describes how it becomes the tensor of a Hugging Face checkpoint.

    `stored` is the shape in the file; its last axis is contiguous and divided into blocks. `exchanged` has the sizes of
    four axes into which the file's rows are divided; the checkpoint's order of rows results from exchanging the middle
    two axes (None: the file has the checkpoint's order). Then `shift` is added to all values and, with `transposed`,
    the result is transposed.
    """

    path: Path
    type: TensorType
    stored: tuple[int, ...]
    offset: int  # in bytes
    exchanged: Axes | None = None
    transposed: bool = False
    shift: float = 0.0
    sha256: None = None  # a GGUF file has no checksums
    whole: None = None

    @property
    def dtype(self) -> str:
        """Returns the name of the type, such as "F32" or "Q4_1", as llama.cpp writes it."""
        return self.type.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape in the checkpoint."""
        return self.stored[::-1] if self.transposed else self.stored

    @property
    def readable(self) -> bool:
        """Always True: the reader refuses files with tensors of unsupported types."""
        return True

    def arranged(self, exchanged: Axes | None = None, transposed: bool = False, shift: float = 0.0) -> GgufTensor:
        """Returns the tensor with the given arrangement of its rows and axes, and the given shift."""
        return replace(self, exchanged=exchanged, transposed=transposed, shift=shift)

    def rows(self, rows: slice) -> GgufTensor:
        """Returns the tensor with only these rows of the file. `self` must not have exchanged or transposed axes."""
        assert self.exchanged is None and not self.transposed
        offset = self.offset + replace(self, stored=(rows.start, *self.stored[1:])).nbytes
        return replace(self, stored=(rows.stop - rows.start, *self.stored[1:]), offset=offset)

    def map(self) -> NDArray[Any]:
        """Returns the tensor in the checkpoint's shape, read-only: float16 for F16 without a `shift`, else float32.

        For a tensor of type F32 or F16 without `exchanged` and `shift`, the result is a view of a new memory map. All
        other tensors are decoded into memory. Raises OSError or ValueError if the file has become shorter since its
        header was read.
        """
        found: NDArray[Any]
        if self.dtype in ("F32", "F16") and self.exchanged is None and not self.shift:
            found = self._raw().view(self.type.dtype).reshape(self.stored)
        else:
            found = np.empty(self.stored, np.float16 if self.dtype == "F16" and not self.shift else np.float32)
            rows = found.reshape(self._matrix)
            for start, data in self._chunks():
                values = self.type.values(data)
                rows[start : start + len(data)] = values + np.float32(self.shift) if self.shift else values
            found.flags.writeable = False
        return found.T if self.transposed else found

    def blocks(self) -> GgufBlocks:
        """Returns the stored scales, minima and levels.

        A row of the result has the weights of one output of the layer, and a column has the weights of one input, even
        with `transposed`. The rows are in the checkpoint's order. Raises ValueError for a type without blocks.
        """
        if self.type.unpack is None:
            raise ValueError(f"{self.dtype} has no blocks")
        order = self._order()
        raw = self._raw().reshape(self._matrix[0], -1)
        return self.type.blocks(raw if order is None else raw[order])

    def scales(self) -> NDArray[np.float16]:
        """Returns the first float16 of each block, in the file's order: in Q4_0, for example, the block's scale."""
        blocks = self._raw().reshape(-1, self.type.nbytes)
        return np.ascontiguousarray(blocks[:, :2]).view("<f2")

    def sample(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Returns the values at flat indices into the checkpoint's tensor. Decodes only the blocks that hold them."""
        at = np.unravel_index(indices, self.shape)
        flat = np.ravel_multi_index(at[::-1] if self.transposed else at, self.stored)
        rows, columns = np.divmod(flat, self._matrix[1])
        order = self._order()
        rows = rows if order is None else order[rows]
        block, within = np.divmod(rows * self._matrix[1] + columns, self.type.block)
        data = self._raw().reshape(-1, self.type.nbytes)[block]
        found: NDArray[np.float32] = self.type.values(data)[np.arange(len(flat)), within] + np.float32(self.shift)
        return found

    @property
    def _matrix(self) -> tuple[int, int]:
        """Returns the numbers of rows and columns in the file.

        A vector is one row. If its elements are reordered, it is one column instead, because `_order` reorders rows.
        """
        columns = 1 if len(self.stored) == 1 and self.exchanged else self.stored[-1]
        return math.prod(self.stored) // columns, columns

    @property
    def nbytes(self) -> int:
        """Returns the size in bytes in the file."""
        return math.prod(self.stored) // self.type.block * self.type.nbytes

    def _raw(self) -> NDArray[np.uint8]:
        # The path is given as a string, because NumPy would resolve the symbolic links of a Path at each call.
        mapped = np.memmap(str(self.path), np.uint8, "r", self.offset, (self.nbytes,))
        found: NDArray[np.uint8] = mapped.view(np.ndarray)
        return found

    def _chunks(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yields chunks of rows in the checkpoint's order: the number of a chunk's first row, and the chunk's bytes."""
        rows, columns = self._matrix
        raw, order = self._raw().reshape(rows, -1), self._order()
        many = max(1, CHUNK // columns)
        for start in range(0, rows, many):
            yield start, raw[start : start + many] if order is None else raw[order[start : start + many]]

    def _order(self) -> NDArray[np.int64] | None:
        return None if self.exchanged is None else row_order(self.exchanged)


def row_order(axes: Axes) -> NDArray[np.int64]:
    """Returns, for each row of the checkpoint, the number of the same row in the file.

    `axes` are the sizes of `GgufTensor.exchanged`.
    """
    order: NDArray[np.int64] = np.arange(math.prod(axes)).reshape(axes).swapaxes(1, 2).ravel()
    return order
