"""Encodes float32 values as the blocks of a GGUF tensor type, bit for bit as ggml's reference implementation does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.gguf.block_types import BF16, F16, F32, TYPES, TensorType

Floats = NDArray[np.float32]


def encode(kind: TensorType, values: NDArray[Any]) -> NDArray[np.uint8]:
    """Encodes values `[rows, columns]` as bytes `[rows, bytes of a row]`. `kind` must be one of `WRITABLE`."""
    if kind in (F32, F16):
        return np.ascontiguousarray(values, kind.dtype).view(np.uint8)
    values = np.ascontiguousarray(values, np.float32)
    if kind is BF16:
        return _bf16(values).view(np.uint8)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _ENCODERS[kind.name](values.reshape(-1, kind.block)).reshape(len(values), -1)


def _bf16(values: Floats) -> NDArray[np.uint16]:
    """Rounds finite values to bfloat16, which has the upper 16 bits of a float32; ties go to the even number."""
    bits = values.view(np.uint32)
    upper: NDArray[np.uint16] = ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype("<u2")
    return upper


def _inverse(scale: Floats) -> Floats:
    found: Floats = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    return found


def _bytes(numbers: Floats) -> NDArray[np.uint8]:
    return numbers.astype("<f2").view(np.uint8)


def _packed(levels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Packs each block's 32 levels (quantised values of four bits) into 16 bytes.

    The first 16 levels are the low four bits of the 16 bytes, and the last 16 levels are the high four bits.
    """
    both: NDArray[np.uint8] = levels[:, :16] | levels[:, 16:] << np.uint8(4)
    return both


def _q8_0(blocks: Floats) -> NDArray[np.uint8]:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * _inverse(scale)
    rounded = np.sign(scaled) * np.floor(np.abs(scaled) + np.float32(0.5))  # ties away from zero
    return np.concatenate([_bytes(scale), rounded.astype(np.int8).view(np.uint8)], axis=1)


def _q4_0(blocks: Floats) -> NDArray[np.uint8]:
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scale = largest / np.float32(-8)
    levels = np.trunc(blocks * _inverse(scale) + np.float32(8.5)).clip(0, 15).astype(np.uint8)
    return np.concatenate([_bytes(scale), _packed(levels)], axis=1)


def _q4_1(blocks: Floats) -> NDArray[np.uint8]:
    low = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - low) / np.float32(15)
    return q4_1_bytes(np.trunc((blocks - low) * _inverse(scale) + np.float32(0.5)).clip(0, 15), scale, low)


def q4_1_bytes(levels: Floats, scale: Floats, low: Floats) -> NDArray[np.uint8]:
    """Encodes blocks of Q4_1 as bytes `[blocks, 20]`.

    `levels` has the shape `[blocks, 32]`. `scale` and `low` (the minimum of each block) have the shape `[blocks, 1]`.
    """
    return np.concatenate([_bytes(scale), _bytes(low), _packed(levels.astype(np.uint8))], axis=1)


_ENCODERS: dict[str, Callable[[Floats], NDArray[np.uint8]]] = {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1}
WRITABLE = {kind.name: kind for kind in TYPES.values() if kind.name in _ENCODERS or kind.unpack is None}
