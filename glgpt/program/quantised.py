"""Quantises weights to small integers (levels); each group of rows of a column has a scale, and possibly a minimum.

A weight is level * scale, or level * scale + minimum. GGUF has the same groups: 32 or 16 weights along the input axis,
which is the axis of rows in a weight's texture. `Blocks` holds the weights of a GGUF file's blocks without further
rounding, so that they decode to the file's float32 values. The last group of a matrix, or of a tile, may have fewer
rows; its scale is computed from these rows only.

Each of the four components of a texel holds one level of every column tile that shares the texel, with the first tile
in the lowest bits. Numbers are rounded as numpy rounds float32, to nearest even, so that a checkpoint always gives the
same texels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Texels = NDArray[np.float32 | np.uint32]
Parts = tuple[Floats, Floats, Floats | None]  # levels, scales, minima

MIN_NORMAL = np.float32(2.0**-126)  # smallest magnitude of scales and minima except 0; devices may flush smaller ones
CHUNK = 1 << 16  # number of values to quantise at a time, so that arrays stay in a processor's cache
# In the search for a group's scale and minimum, each candidate divides the group's range of values into steps. The
# number of steps is the highest level plus one of these numbers.
SPREADS = (0.0, -1.0, -0.5, 0.5, 1.0)


@dataclass(frozen=True)
class Coding:
    """The numbers that a quantised format stores.

    Levels have `bits` bits, and `group` rows of a column share a scale. With `minimum`, each group has a minimum, and
    levels are integers from 0, or signed integers if `signed` is set. Without `minimum`, levels are always signed.
    Scales and minima are float16, or float32 if `wide`.
    """

    bits: int
    group: int = 32
    minimum: bool = False
    wide: bool = False
    signed: bool = False

    @property
    def unsigned(self) -> bool:
        """True if levels are never negative."""
        return self.minimum and not self.signed

    @property
    def tiles(self) -> int:
        """Returns the number of column tiles that share a texel; the texel holds four levels of each of them."""
        return 32 // self.bits

    @property
    def range(self) -> tuple[int, int]:
        """Returns the lowest and the highest level that `quantise` uses."""
        most = 2 ** (self.bits - 1) - 1
        return (0, 2 * most + 1) if self.unsigned else (0 if self.minimum else -most, most)

    @property
    def scale_rows(self) -> int:
        """Returns the number of rows of texels that hold the scales and minima of a group of rows."""
        return self.tiles * (2 if self.minimum else 1) // (1 if self.wide else 2)

    def rounded(self, values: Floats) -> Floats:
        """Rounds scales or minima to the nearest numbers that can be stored; a value beyond their range becomes NaN."""
        found = np.asarray(values, np.float32)
        if self.wide:
            found = np.where(np.abs(found) < MIN_NORMAL, np.float32(0), found)
        else:
            with np.errstate(over="ignore"):
                found = found.astype(np.float16).astype(np.float32)
        return np.where(np.isfinite(found), found, np.float32("nan"))

    # -- texels -------------------------------------------------------------------------------------------------

    def pack_levels(self, levels: NDArray[Any]) -> NDArray[np.uint32]:
        """Packs levels `[..., 4 * tiles]` as texels `[..., 4]`.

        The levels are four of the first column tile, then four of the next one, and so on.
        """
        return self.pack_tiles(np.split(levels, self.tiles, axis=-1))

    def pack_tiles(self, tiles: Sequence[NDArray[Any]]) -> NDArray[np.uint32]:
        """Packs the levels `[..., 4]` of each column tile as texels `[..., 4]`.

        The result has the memory order of the arrays of levels.
        """
        bits, parts = self.bits, list[NDArray[Any]](map(_as_bytes, tiles))
        if not self.unsigned and bits < 8:
            parts = [part & np.uint8(2**bits - 1) for part in parts]
        while len(parts) > 1:  # joins pairs of neighbours in the narrowest integers that hold both
            dtype = np.dtype(f"u{max(1, bits // 4)}")
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [low | np.left_shift(high, bits, dtype=dtype) for low, high in pairs]
            bits *= 2
        return parts[0]

    def unpack_levels(self, texels: Texels) -> Floats:
        """Returns the levels that `pack_levels` packed."""
        words = np.ascontiguousarray(texels)[..., None, :].view(np.uint32)
        up = (32 - self.bits - self.bits * np.arange(self.tiles, dtype=np.uint32))[:, None]
        top = words << up
        found = (top if self.unsigned else top.view(np.int32)) >> (32 - self.bits)
        levels: Floats = found.reshape(*texels.shape[:-1], 4 * self.tiles).astype(np.float32)
        return levels

    def pack_scales(self, scales: NDArray[Any], minima: NDArray[Any] | None) -> Texels:
        """Packs scales and minima `[groups, n, 4 * tiles]` as texels `[groups, scale_rows, n, 4]`."""
        both = [scales] if minima is None else [scales, minima]
        values = np.stack([x.reshape(*scales.shape[:2], self.tiles, 4) for x in both], axis=3)
        with np.errstate(over="ignore"):
            stored = np.ascontiguousarray(values, np.float32 if self.wide else np.float16).view(np.uint32)
        by_row = stored.reshape(*scales.shape[:2], self.scale_rows, 4).transpose(0, 2, 1, 3)
        texels: Texels = np.ascontiguousarray(by_row)
        return texels

    def unpack_scales(self, texels: Texels) -> tuple[Floats, Floats | None]:
        """Returns the scales and minima that `pack_scales` packed."""
        groups, _, n, _ = texels.shape
        stored = np.ascontiguousarray(texels.transpose(0, 2, 1, 3)).view(np.float32 if self.wide else np.float16)
        values = stored.astype(np.float32).reshape(groups, n, self.tiles, 2 if self.minimum else 1, 4)
        scales, *minima = np.moveaxis(values, 3, 0).reshape(values.shape[3], groups, n, -1)
        return scales, minima[0] if minima else None

    # -- quantisation -------------------------------------------------------------------------------------------

    def quantise(self, values: Floats) -> Parts:
        """Returns (levels, scales, minima) for values `[groups, rows, ...]`; a group may have fewer than `group` rows.

        Without `minimum`, a group's scale maps its greatest magnitude to the greatest level, and the minima are None.
        With `minimum`, scale and minimum approximately minimise the squared error (`_search`). A group decodes to NaN
        if it has a number that is not finite, or if its scale or minimum is too large to be stored.
        """
        flat = np.asarray(values, np.float32).reshape(*values.shape[:2], -1)
        levels = np.empty_like(flat)
        scales = np.empty((len(flat), flat.shape[2]), np.float32)
        minima = np.empty_like(scales) if self.minimum else None
        wide = max(1, CHUNK // flat.shape[1])
        step = max(1, wide // flat.shape[2])  # groups
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for g in range(0, len(flat), step):
                for c in range(0, flat.shape[2], wide):
                    part = np.s_[g : g + step, c : c + wide]
                    group = flat[g : g + step, :, c : c + wide]
                    found = self._search(group) if self.minimum else self._largest(group)
                    levels[g : g + step, :, c : c + wide], scales[part] = found[0], found[1]
                    if minima is not None:
                        minima[part] = found[2]
        shape = (len(flat), *values.shape[2:])
        return levels.reshape(values.shape), scales.reshape(shape), None if minima is None else minima.reshape(shape)

    def _largest(self, x: Floats) -> tuple[Floats, Floats, None]:
        """Quantises values `[groups, rows, n]`; scales map the greatest magnitude of a group to the greatest level."""
        low, high = self.range
        scale = self.rounded(np.abs(x).max(axis=1) / np.float32(high))
        levels: Floats = np.clip(np.rint(x * _inverse(scale)[:, None]), low, high)
        return np.nan_to_num(levels, copy=False, nan=0.0), scale, None

    def _search(self, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Quantises values `[groups, rows, n]` with scales and minima that approximately minimise the squared error.

        Takes the best of a few candidates. The first one divides the range of a group's values evenly. Each of the
        others rounds the values to levels with the same or a slightly different step (`SPREADS`), and fits a line
        through the points (level, value) by least squares. The slope of the line is the scale, and its value at level 0
        is the minimum.
        """
        high, rows = np.float32(self.range[1]), np.float32(x.shape[1])
        least, most = x.min(axis=1), x.max(axis=1)
        t, span = x - least[:, None], most - least
        sum_t = t.sum(axis=1)
        best, scale, minimum = self._decoded_error(x, span / high, least)
        for spread in SPREADS:
            levels = np.clip(np.rint(t * _inverse(span / (high + np.float32(spread)))[:, None]), 0, high)
            sum_q, sum_qq, sum_qt = levels.sum(axis=1), (levels * levels).sum(axis=1), (levels * t).sum(axis=1)
            slope = (rows * sum_qt - sum_t * sum_q) * _inverse(rows * sum_qq - sum_q * sum_q)
            error, *candidate = self._decoded_error(x, slope, least + (sum_t - slope * sum_q) / rows)
            better = error < best
            best = np.where(better, error, best)
            scale, minimum = np.where(better, candidate[0], scale), np.where(better, candidate[1], minimum)
        return self._nearest(x, scale, minimum), scale, minimum

    def _nearest(self, x: Floats, scale: Floats, minimum: Floats) -> Floats:
        levels: Floats = np.clip(np.rint((x - minimum[:, None]) * _inverse(scale)[:, None]), *self.range)
        return np.nan_to_num(levels, copy=False, nan=0.0)

    def _decoded_error(self, x: Floats, scale: Floats, minimum: Floats) -> tuple[Floats, Floats, Floats]:
        """Returns (squared error, scale, minimum): scale and minimum rounded for storage, and the error with these."""
        scale, minimum = self.rounded(scale), self.rounded(minimum)
        error = self._nearest(x, scale, minimum) * scale[:, None]
        error += minimum[:, None]
        error -= x
        return np.einsum("gkn,gkn->gn", error, error), scale, minimum


@dataclass(frozen=True, eq=False)
class Blocks:
    """A quantised matrix `[rows, cols]` with a row for each input of the product; it is uploaded without rounding.

    `levels` `[rows, cols]` are integers that `coding` can store; `scales` and `minima` `[groups, cols]` are numbers
    that `coding` stores exactly. Indexing with slices, `blocks[rows, columns]`, returns weights as float32. Raises
    ValueError if the shapes do not fit, if `coding` has a minimum but there are no `minima`, or the other way round.
    """

    coding: Coding
    levels: NDArray[np.integer[Any]]
    scales: NDArray[np.floating[Any]]
    minima: NDArray[np.floating[Any]] | None = None

    def __post_init__(self) -> None:
        rows, cols = self.levels.shape
        wanted = (-(-rows // self.coding.group), cols)
        if self.scales.shape != wanted or (self.minima is not None and self.minima.shape != wanted):
            raise ValueError(f"scales and minima of {self.levels.shape} levels are not {wanted}")
        if (self.minima is not None) != self.coding.minimum:
            raise ValueError(f"{self.coding} has {'a' if self.coding.minimum else 'no'} minimum")

    def with_columns(self, arrange: Callable[[NDArray[Any]], NDArray[Any]]) -> Blocks:
        """Returns blocks with other columns: applies `arrange` to levels, scales and minima.

        `arrange` may reorder columns or pad them with zeros.
        """
        minima = None if self.minima is None else arrange(self.minima)
        return Blocks(self.coding, arrange(self.levels), arrange(self.scales), minima)

    @property
    def shape(self) -> tuple[int, int]:
        """Returns the numbers of rows and columns."""
        rows, cols = self.levels.shape
        return rows, cols

    def __getitem__(self, at: tuple[slice, slice]) -> Floats:
        """Returns the weights in these rows and columns, as shaders decode them."""
        rows, cols = at
        groups = np.arange(*rows.indices(self.shape[0])) // self.coding.group
        found: Floats = self.levels[at].astype(np.float32) * self.scales[:, cols].astype(np.float32)[groups]
        return found if self.minima is None else found + self.minima[:, cols].astype(np.float32)[groups]


def _as_bytes(levels: NDArray[Any]) -> NDArray[np.uint8]:
    """Returns the lowest eight bits of levels, as a view if possible."""
    if levels.dtype == np.int8:
        return levels.view(np.uint8)
    return (levels.astype(np.int16) if levels.dtype.kind == "f" else levels).astype(np.uint8, copy=False)


def _inverse(scale: Floats) -> Floats:
    """Returns 1 / scale, or 0 for a scale of zero."""
    found: Floats = np.where(scale != 0, np.float32(1) / scale, np.float32(0))
    return found
