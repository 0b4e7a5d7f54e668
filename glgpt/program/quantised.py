"""Numbers as small integers with a scale for each group: rounding, and packing into 128-bit texels.

A texel holds an integer of each of four columns (its components) of every column tile that shares it (the bits of a
component, the first tile the lowest). Scales are bfloat16, the upper half of a float32: as wide a range as the weights
have, and two operations to decode on any driver. Rounding is that of numpy in float32, to even, so that the same
checkpoint always gives the same texels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Texels = NDArray[np.float32 | np.uint32]

SCALES_PER_TEXEL = 8
_SMALLEST = np.float32(2.0**-126)  # of a scale; devices take smaller ones for zero


def quantise(values: Floats, bits: int) -> tuple[Floats, Floats]:
    """(integers as float32, scales) of the groups `[groups, rows, ...]`: values are about integers * scales.

    The greatest magnitude of a group is the greatest integer, and every number is rounded by at most half a scale. A
    group with a number that is not finite reads as NaN.
    """
    most = np.float32(2 ** (bits - 1) - 1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scales = _rounded_up(np.abs(values).max(axis=1) / most)
        inverse = np.where(scales > 0, np.float32(1) / scales, np.float32(0))
        integers = np.rint(values * inverse[:, None])
    np.nan_to_num(integers, copy=False, nan=0.0)
    return np.clip(integers, -most, most, out=integers), scales


def _rounded_up(scales: Floats) -> Floats:
    """The next bfloat16 that is no less; zero for what a device may take for zero, NaN for what is not finite."""
    words = np.ascontiguousarray(scales, np.float32).view(np.uint32)
    above = ((words + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    found: Floats = np.where(np.isfinite(scales), np.where(scales < _SMALLEST, np.float32(0), above), np.float32("nan"))
    return found


def pack_scales(scales: Floats, rows: int) -> Texels:
    """Texels `[groups, rows, n, 4]` of the scales `[groups, n, 8 rows]`."""
    halves = (np.ascontiguousarray(scales, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    by_row = halves.reshape(*scales.shape[:2], rows, SCALES_PER_TEXEL).transpose(0, 2, 1, 3)
    texels: Texels = np.ascontiguousarray(by_row).view(np.uint32)
    return texels


def unpack_scales(texels: Texels) -> Floats:
    """The scales `[groups, n, 8 rows]` that `pack_scales` packed."""
    halves = np.ascontiguousarray(texels).view(np.uint16).transpose(0, 2, 1, 3)
    words: NDArray[np.uint32] = halves.reshape(*halves.shape[:2], -1).astype(np.uint32) << np.uint32(16)
    found: Floats = words.view(np.float32)
    return found


def pack_bytes(integers: Floats) -> Texels:
    """Texels `[..., 4]` of integers `[..., 16]`, four of each column tile in turn."""
    by_column = integers.astype(np.int8).reshape(*integers.shape[:-1], 4, 4).swapaxes(-1, -2)
    texels: Texels = np.ascontiguousarray(by_column).view(np.uint32)[..., 0]
    return texels


def unpack_bytes(texels: Texels) -> Floats:
    """The integers that `pack_bytes` packed."""
    by_column = np.ascontiguousarray(texels)[..., None].view(np.int8)
    found: Floats = by_column.swapaxes(-1, -2).reshape(*texels.shape[:-1], 16).astype(np.float32)
    return found


def pack_nibbles(integers: Floats) -> Texels:
    """Texels `[..., 4]` of integers `[..., 32]`, four of each column tile in turn."""
    tiles = (integers.astype(np.int8).view(np.uint8) & 15).reshape(*integers.shape[:-1], 4, 2, 4)
    pairs = (tiles[..., 0, :] | (tiles[..., 1, :] << 4)).swapaxes(-1, -2)
    texels: Texels = np.ascontiguousarray(pairs).view(np.uint32)[..., 0]
    return texels


def unpack_nibbles(texels: Texels) -> Floats:
    """The integers that `pack_nibbles` packed."""
    pairs = np.ascontiguousarray(texels)[..., None].view(np.int8).swapaxes(-1, -2)
    tiles = np.stack([(pairs << 4) >> 4, pairs >> 4], axis=-2)
    found: Floats = tiles.reshape(*texels.shape[:-1], 32).astype(np.float32)
    return found
