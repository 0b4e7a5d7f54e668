"""Writes a safetensors file tensor by tensor, so that only one tensor at a time is in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from glgpt.checkpoint.safetensors_file import sha256

Checksums = Mapping[str, str]  # the SHA-256 of each tensor, as 64 hexadecimal digits


class SafetensorsWriter:
    """Writes float32 tensors of known shapes to a file: first the header, then each tensor when it is added.

    `metadata` receives the tensors' checksums and returns the metadata for the header. The checksums are known only at
    the end, when `finish` overwrites the header. Therefore the length of the metadata must not depend on the digits of
    a checksum.
    """

    def __init__(
        self,
        file: IO[bytes],
        shapes: Mapping[str, tuple[int, ...]],
        metadata: Callable[[Checksums], dict[str, str]],
    ) -> None:
        self._file, self._shapes, self._metadata = file, shapes, metadata
        self._left = list(shapes)[::-1]
        self._sums: dict[str, str] = {}
        file.write(self._header(dict.fromkeys(shapes, "0" * 64)))

    def add(self, name: str, array: NDArray[Any]) -> None:
        """Writes the next tensor. Raises ValueError if the header lists another name or shape next."""
        if not self._left or self._left.pop() != name or array.shape != self._shapes[name]:
            raise ValueError(f"tensor {name} of shape {list(array.shape)} is not the next one of the header")
        stored = np.ascontiguousarray(array, "<f4")
        self._sums[name] = sha256(stored)
        self._file.write(stored.data.cast("B") if stored.size else b"")

    def finish(self) -> None:
        """Writes the header with the checksums. Raises ValueError if a tensor is missing."""
        if self._left:
            raise ValueError(f"tensor {self._left[-1]} was not written")
        self._file.seek(0)
        self._file.write(self._header(self._sums))

    def _header(self, sums: Checksums) -> bytes:
        entries: dict[str, Any] = {"__metadata__": self._metadata(sums)}
        end = 0
        for name, shape in self._shapes.items():
            start, end = end, end + 4 * math.prod(shape)
            entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)  # aligns the tensors to 8 bytes
        return len(text).to_bytes(8, "little") + text
