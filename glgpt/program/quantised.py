"""Quantisation to small integers with a scale for each group of rows, and packing into 128-bit texels.

Each component of a texel holds one column of every column tile that shares the texel, the first tile in the lowest
bits. Scales are bfloat16, the upper half of a float32: they have the range of the weights and take two operations to
decode on any driver. Numbers are rounded as numpy rounds float32, to nearest even, so that a checkpoint always gives
the same texels.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Texels = NDArray[np.float32 | np.uint32]

SCALES_PER_TEXEL = 8
_MIN_SCALE = np.float32(2.0**-126)  # the smallest scale; devices may flush smaller numbers to zero


def quantise(values: Floats, bits: int) -> tuple[Floats, Floats]:
    """Returns (integers as float32, scales) of the groups `[groups, rows, ...]`; values are about integers * scales.

    The greatest magnitude of a group becomes the greatest integer, and every number is rounded by at most half a scale.
    If a number of a group is not finite, the whole group reads as NaN.
    """
    most = np.float32(2 ** (bits - 1) - 1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scales = _rounded_up(np.abs(values).max(axis=1) / most)
        inverse = np.where(scales > 0, np.float32(1) / scales, np.float32(0))
        integers = np.rint(values * inverse[:, None])
    np.nan_to_num(integers, copy=False, nan=0.0)
    return np.clip(integers, -most, most, out=integers), scales


def _rounded_up(scales: Floats) -> Floats:
    """Rounds up to bfloat16; returns zero for numbers that a device may flush to zero, NaN for those not finite."""
    words = np.ascontiguousarray(scales, np.float32).view(np.uint32)
    above = ((words + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)
    rounded = np.where(scales < _MIN_SCALE, np.float32(0), above)
    found: Floats = np.where(np.isfinite(scales), rounded, np.float32("nan"))
    return found


def pack_scales(scales: Floats, rows: int) -> Texels:
    """Packs the scales `[groups, n, 8 rows]` as texels `[groups, rows, n, 4]`."""
    upper = (np.ascontiguousarray(scales, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    by_row = upper.reshape(*scales.shape[:2], rows, SCALES_PER_TEXEL).transpose(0, 2, 1, 3)
    texels: Texels = np.ascontiguousarray(by_row).view(np.uint32)
    return texels


def unpack_scales(texels: Texels) -> Floats:
    """Returns the scales `[groups, n, 8 rows]` that `pack_scales` packed."""
    upper = np.ascontiguousarray(texels).view(np.uint16).transpose(0, 2, 1, 3)
    words: NDArray[np.uint32] = upper.reshape(*upper.shape[:2], -1).astype(np.uint32) << np.uint32(16)
    found: Floats = words.view(np.float32)
    return found


def pack_bytes(integers: Floats) -> Texels:
    """Packs integers `[..., 16]`, four of each column tile in turn, as texels `[..., 4]`."""
    by_column = integers.astype(np.int8).reshape(*integers.shape[:-1], 4, 4).swapaxes(-1, -2)
    texels: Texels = np.ascontiguousarray(by_column).view(np.uint32)[..., 0]
    return texels


def unpack_bytes(texels: Texels) -> Floats:
    """Returns the integers that `pack_bytes` packed."""
    by_column = np.ascontiguousarray(texels)[..., None].view(np.int8)
    found: Floats = by_column.swapaxes(-1, -2).reshape(*texels.shape[:-1], 16).astype(np.float32)
    return found


def pack_nibbles(integers: Floats) -> Texels:
    """Packs integers `[..., 32]`, four of each column tile in turn, as texels `[..., 4]`."""
    tiles = (integers.astype(np.int8).view(np.uint8) & 15).reshape(*integers.shape[:-1], 4, 2, 4)
    pairs = (tiles[..., 0, :] | (tiles[..., 1, :] << 4)).swapaxes(-1, -2)
    texels: Texels = np.ascontiguousarray(pairs).view(np.uint32)[..., 0]
    return texels


def unpack_nibbles(texels: Texels) -> Floats:
    """Returns the integers that `pack_nibbles` packed."""
    pairs = np.ascontiguousarray(texels)[..., None].view(np.int8).swapaxes(-1, -2)
    tiles = np.stack([(pairs << 4) >> 4, pairs >> 4], axis=-2)
    found: Floats = tiles.reshape(*texels.shape[:-1], 32).astype(np.float32)
    return found
