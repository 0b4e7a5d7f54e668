"""Writes GGUF files of version 3: the metadata, then one tensor after another."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import FileError, written
from glgpt.gguf.block_types import NUMBERS as TYPE_NUMBERS
from glgpt.gguf.block_types import TensorType
from glgpt.gguf.quantize import encode
from glgpt.gguf.reader import ALIGNMENT, ARRAY, BOOL, MAGIC, NUMBERS, STRING, VERSIONS
from glgpt.system.files import written_whole

CHUNK = 1 << 20  # number of values encoded at once
_U32, _I32, _F32, _U64 = 4, 5, 6, 10


@dataclass(frozen=True)
class Tensor:
    """A tensor to write. `read` is called once, and returns the tensor's values in the file's order and shape.

    `encode` is called with the tensor's type and the values of some of its rows, `[rows, columns]`; it returns the
    bytes of these rows. None stands for `quantize.encode`, which rounds as ggml does.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]
    encode: Callable[[TensorType, NDArray[Any]], NDArray[np.uint8]] | None = None

    @property
    def nbytes(self) -> int:
        """Returns the size in bytes in the file, without padding."""
        return math.prod(self.shape) // self.type.block * self.type.nbytes


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[Tensor],
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Writes a file, which appears at `path` only when it is complete. Returns its size in bytes.

    Values of the metadata are strings, flags, integers, floats, lists of strings, and NumPy arrays of numbers. One
    tensor is in memory at a time. After each tensor, `progress` is called with the bytes written and the total bytes;
    both numbers count only the bytes of tensors.
    """
    total, done = sum(tensor.nbytes for tensor in tensors), 0
    with written_whole(path) as file:
        file.write(header(metadata, tensors))
        for tensor in tensors:
            _pad(file)
            values = tensor.read()
            if values.shape != tensor.shape:
                raise ValueError(f"tensor {tensor.name} has shape {values.shape}, not {tensor.shape}")
            matrix = values.reshape(-1, tensor.shape[-1])
            rows, to_bytes = max(1, CHUNK // tensor.shape[-1]), tensor.encode or encode
            for start in range(0, len(matrix), rows):
                file.write(to_bytes(tensor.type, matrix[start : start + rows]).data)
            done += tensor.nbytes
            if progress:
                progress(done, total)
        _pad(file)
        return file.tell()


def header(metadata: Mapping[str, Any], tensors: Sequence[Tensor]) -> bytes:
    """Returns the beginning of a file: everything before the padding that precedes the tensors' values."""
    found = bytearray(MAGIC + struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(metadata)))
    for key, value in metadata.items():
        kind, data = _value(key, value)
        found += _string(key) + struct.pack("<I", kind) + data
    offset = 0
    for tensor in tensors:
        found += _string(tensor.name) + struct.pack("<I", len(tensor.shape))
        found += struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape[::-1])
        found += struct.pack("<IQ", TYPE_NUMBERS[tensor.type.name], offset)
        offset += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    return bytes(found)


def _pad(file: IO[bytes]) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


def _string(text: str) -> bytes:
    data = text.encode("utf-8", errors="replace")
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: Any) -> tuple[int, bytes]:
    """Returns the type and the bytes of a value. Raises FileError for a value that the format cannot hold."""
    if isinstance(value, str):
        return STRING, _string(value)
    if isinstance(value, bool):
        return BOOL, struct.pack("<?", value)
    if isinstance(value, float):
        return _F32, struct.pack("<f", value)
    if isinstance(value, int) and -(1 << 31) <= value < 1 << 64:
        kind, form = (_I32, "<i") if value < 0 else (_U32, "<I") if value < 1 << 32 else (_U64, "<Q")
        return kind, struct.pack(form, value)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return ARRAY, struct.pack("<IQ", STRING, len(value)) + b"".join(map(_string, value))
    if isinstance(value, np.ndarray):
        dtype = "<u1" if value.dtype == bool else value.dtype.newbyteorder("<").str.replace("|", "<")
        kind = BOOL if value.dtype == bool else next((n for n, d in NUMBERS.items() if d == dtype), -1)
        if kind >= 0:
            return ARRAY, struct.pack("<IQ", kind, len(value)) + value.astype(dtype).tobytes()
    raise FileError(f"{key} is {written(value)}, which GGUF metadata cannot hold")
