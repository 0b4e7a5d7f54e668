"""Describes the tensor types of GGUF, and splits their blocks into scales, minima and levels.

A quantised type stores a block of 32 or 256 values together, each value as a small integer, its level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]  # [blocks, bytes of a block]


@dataclass(frozen=True)
class GgufBlocks:
    """Quantised rows. A value is scale * level + minimum, computed in float32.

    A scale and a minimum apply to `group` consecutive values of a row. `scale` and `minimum` are
    `[rows, columns / group]`. They are float16 if the file stores them as float16, and float32 if they are products of
    stored numbers. `minimum` is None if the type has no minima. `levels` are integers `[rows, columns]`.
    """

    group: int
    scale: NDArray[Any]
    minimum: NDArray[Any] | None
    levels: NDArray[Any]

    def values(self) -> NDArray[np.float32]:
        """Returns the values as float32 `[rows, columns]`, rounded as in llama.cpp."""
        rows, columns = self.levels.shape
        found = self.levels.reshape(rows, -1, self.group).astype(np.float32)
        found *= self.scale.astype(np.float32)[:, :, None]
        if self.minimum is not None:
            found += self.minimum.astype(np.float32)[:, :, None]
        return found.reshape(rows, columns)


Parts = tuple[NDArray[Any], "NDArray[Any] | None", NDArray[Any]]  # scale, minimum, levels of each block


@dataclass(frozen=True)
class TensorType:
    """A type of tensor: `block` values take `nbytes` bytes. `dtype` is the NumPy dtype of types without blocks.

    `group` consecutive values have a common scale and minimum. `unpack` splits the bytes of blocks into scales and
    minima, both `[blocks, block / group]`, and levels `[blocks, block]`. `unpack` is None for a type without blocks.
    """

    name: str
    block: int
    nbytes: int
    dtype: str = ""
    group: int = 32
    unpack: Callable[[Bytes], Parts] | None = None

    def blocks(self, data: Bytes) -> GgufBlocks:
        """Returns the scales, minima and levels of the rows in `data`, `[rows, bytes of a row]`."""
        assert self.unpack
        rows = len(data)
        scale, minimum, levels = self.unpack(data.reshape(-1, self.nbytes))
        low = None if minimum is None else minimum.reshape(rows, -1)
        return GgufBlocks(self.group, scale.reshape(rows, -1), low, levels.reshape(rows, -1))

    def values(self, data: Bytes) -> NDArray[np.float32]:
        """Returns the values of the rows in `data`, `[rows, bytes of a row]`, as float32."""
        if self.unpack:
            return self.blocks(data).values()
        plain: NDArray[Any] = data.view(self.dtype)
        if self.name == "BF16":  # a bfloat16 is the upper 16 bits of a float32
            plain = np.left_shift(plain, 16, dtype=np.uint32).view(np.float32)
        found: NDArray[np.float32] = plain.astype(np.float32, copy=False)
        return found


def _half(data: Bytes, at: int) -> NDArray[np.float16]:
    """Returns the float16 that starts at byte `at` of each block, `[blocks, 1]`."""
    return np.ascontiguousarray(data[:, at : at + 2]).view("<f2")


def _nibbles(data: Bytes) -> Bytes:
    """Returns for each block the low four bits of all its bytes, followed by the high four bits of all its bytes."""
    found = np.empty((len(data), 2, data.shape[1]), np.uint8)
    np.bitwise_and(data, 15, out=found[:, 0])  # writing to `found` takes half the time of np.concatenate
    np.right_shift(data, 4, out=found[:, 1])
    return found.reshape(len(data), -1)


def _fifth_bits(data: Bytes) -> Bytes:
    """Returns the fifth bits of 32 levels, each as 0 or 16, from four bytes per block."""
    bits: Bytes = np.unpackbits(data, axis=1, bitorder="little") << np.uint8(4)
    return bits


def _q8_0(data: Bytes) -> Parts:
    return _half(data, 0), None, data[:, 2:].view(np.int8)


def _q4_0(data: Bytes) -> Parts:
    return _half(data, 0), None, _nibbles(data[:, 2:]).view(np.int8) - np.int8(8)


def _q4_1(data: Bytes) -> Parts:
    return _half(data, 0), _half(data, 2), _nibbles(data[:, 4:])


def _q5_0(data: Bytes) -> Parts:
    levels = _nibbles(data[:, 6:]) | _fifth_bits(data[:, 2:6])
    return _half(data, 0), None, levels.view(np.int8) - np.int8(16)


def _q5_1(data: Bytes) -> Parts:
    return _half(data, 0), _half(data, 2), _nibbles(data[:, 8:]) | _fifth_bits(data[:, 4:8])


def _scales(data: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns the scales and the minima of the eight groups of each block.

    A block holds a 6-bit integer for each scale and each minimum, and two float16 factors: one for all scales, and one
    for all minima. The file's minima are to be subtracted, but `GgufBlocks.values` adds minima. Therefore this function
    changes the signs of the minima.
    """
    packed = data[:, 4:16]
    first, second, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scale = np.concatenate([first & 63, (high & 15) | (first >> 6 << 4)], axis=1)
    low = np.concatenate([second & 63, (high >> 4) | (second >> 6 << 4)], axis=1)
    whole, whole_low = _half(data, 0).astype(np.float32), _half(data, 2).astype(np.float32)
    return whole * scale, -(whole_low * low)


def _halves(data: Bytes) -> Bytes:
    """Returns 256 levels of four bits per block.

    Every 32 bytes hold one group of 32 levels in their low four bits, and the next group in their high four bits.
    """
    return _nibbles(data.reshape(-1, 32)).reshape(len(data), 256)


def _q4_k(data: Bytes) -> Parts:
    return *_scales(data), _halves(data[:, 16:])


def _q5_k(data: Bytes) -> Parts:
    bits = (data[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4  # bit i belongs to group i
    return *_scales(data), _halves(data[:, 48:]) | bits.reshape(len(data), 256)


def _q2_k(data: Bytes) -> Parts:
    levels = data[:, 16:80].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scale = _half(data, 80).astype(np.float32) * (data[:, :16] & 15)
    minimum = _half(data, 82).astype(np.float32) * (data[:, :16] >> 4)
    return scale, -minimum, levels.reshape(-1, 256)


def _q3_k(data: Bytes) -> Parts:
    low = data[:, 32:96].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    # Bit i belongs to the 32 values from value 32 i on.
    third = (data[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 2
    levels = (low.reshape(-1, 256) | third.reshape(-1, 256)).view(np.int8) - np.int8(4)
    upper = data[:, 104:108, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    scale = _nibbles(data[:, 96:104]) | upper.transpose(0, 2, 1).reshape(-1, 16) << 4
    return _half(data, 108).astype(np.float32) * (scale.view(np.int8) - np.int8(32)), None, levels


def _q6_k(data: Bytes) -> Parts:
    low = _nibbles(data[:, :128].reshape(-1, 64)).reshape(-1, 2, 4, 32)  # 2 x 4 runs of 32 values
    pairs = data[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    levels = (low | pairs << 4).reshape(-1, 256).view(np.int8) - np.int8(32)
    scale = _half(data, 208).astype(np.float32) * data[:, 192:208].view(np.int8)
    return scale, None, levels


# The levels of IQ4_NL and IQ4_XS, by their four-bit indices
_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)


def _iq4_nl(data: Bytes) -> Parts:
    return _half(data, 0), None, _IQ4[_nibbles(data[:, 2:])]


def _iq4_xs(data: Bytes) -> Parts:
    low = np.stack([data[:, 4:8] & 15, data[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    upper = np.ascontiguousarray(data[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scale = _half(data, 0).astype(np.float32) * ((low | upper << 4).astype(np.int8) - np.int8(32))
    levels = _IQ4[_nibbles(data[:, 8:].reshape(-1, 16))].reshape(-1, 256)
    return scale.repeat(2, axis=1), None, levels  # a scale applies to 32 values, and is returned for two groups of 16


F32, F16, BF16 = TensorType("F32", 1, 4, "<f4"), TensorType("F16", 1, 2, "<f2"), TensorType("BF16", 1, 2, "<u2")
# Supported types, by their numbers in a file.
TYPES = {
    0: F32,
    1: F16,
    2: TensorType("Q4_0", 32, 18, unpack=_q4_0),
    3: TensorType("Q4_1", 32, 20, unpack=_q4_1),
    6: TensorType("Q5_0", 32, 22, unpack=_q5_0),
    7: TensorType("Q5_1", 32, 24, unpack=_q5_1),
    8: TensorType("Q8_0", 32, 34, unpack=_q8_0),
    10: TensorType("Q2_K", 256, 84, group=16, unpack=_q2_k),
    11: TensorType("Q3_K", 256, 110, group=16, unpack=_q3_k),
    12: TensorType("Q4_K", 256, 144, unpack=_q4_k),
    13: TensorType("Q5_K", 256, 176, unpack=_q5_k),
    14: TensorType("Q6_K", 256, 210, group=16, unpack=_q6_k),
    20: TensorType("IQ4_NL", 32, 18, unpack=_iq4_nl),
    23: TensorType("IQ4_XS", 256, 136, group=16, unpack=_iq4_xs),
    30: BF16,
}
# Names of unsupported types by their numbers, for error messages.
OTHERS = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
    39: "MXFP4",
}  # fmt: skip
NUMBERS = {kind.name: number for number, kind in TYPES.items()}
