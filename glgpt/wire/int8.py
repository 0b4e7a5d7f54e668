"""Encodes rows of numbers as int8 with one scale per row: first all scales in f32, then the values, little-endian.

Split models send hidden states in this format, and federations send weight changes. `viewer/src/runtime/gl/int8.ts`
makes the same bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def nbytes(count: int, width: int) -> int:
    """Returns how many bytes `count` numbers take in rows of `width` numbers. The last row may be shorter."""
    return count + 4 * -(-count // width)


def encode(values: Floats, width: int) -> bytes:
    """Encodes numbers in rows of `width` numbers. The last row may be shorter. A row of zeros has scale 1."""
    flat = values.reshape(-1)
    rows = np.zeros((-(-len(flat) // width), width), np.float32)
    rows.reshape(-1)[: len(flat)] = flat
    scales = np.abs(rows).max(axis=1) / np.float32(127)
    scales = np.where(scales > 0, scales, np.float32(1))
    # Subnormal scales are imprecise, so that levels may exceed 127 before `clip`.
    levels = np.rint(rows / scales[:, None]).clip(-127, 127).astype(np.int8)
    return bytes(scales.astype("<f4").tobytes() + levels.reshape(-1)[: len(flat)].tobytes())


def decode(data: bytes | memoryview, count: int, width: int) -> Floats:
    """Returns `count` decoded numbers as one array. If the scale of a row is NaN or infinite, so are its numbers."""
    rows = -(-count // width)
    scales = np.repeat(np.frombuffer(data, "<f4", rows), width)[:count]
    with np.errstate(all="ignore"):  # the callers refuse numbers that are not finite
        found: Floats = np.frombuffer(data, np.int8, count, 4 * rows).astype(np.float32) * scales
    return found
