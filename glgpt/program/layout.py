"""Defines the layout of a matrix in a texture; converts numpy arrays to texels and back.

The matrix is split into a grid of equal tiles: `tiles = (tr, tc)` are the numbers of row tiles and of column tiles. The
rows and columns of a tile are contiguous in the matrix. Texel `(r, c4)` of a tile holds columns `4*c4 .. 4*c4+3` of the
tile's row r. If the storage format packs more than four values into a texel (`formats`), a group of neighbouring column
tiles shares texels; otherwise a group is a single column tile. A layer of the texture holds one group of column tiles
in one row tile.

Each group of column tiles may instead be split into panels, which are strips `panel` texels wide. A layer then holds
`stack` panels, one below the other. The rows of a panel are contiguous in memory. Texels beyond the matrix are zero.

In a quantised format, the rows of a tile form groups that share scales. Rows of texels with the scales precede each
group of rows, and a scale is in the same column of texels as its values. A tile then takes `stored_height` rows of
texels, and row r of the tile is in row `stored_row(r)`. The last group of a tile may have fewer rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.program.formats import ALL, Floats, Format, Texels
from glgpt.program.quantised import Blocks

BAND_BYTES = 8 << 20  # maximum bytes of one upload
Matrix = NDArray[np.floating[Any]] | Blocks
Band = tuple[int, int, Texels]  # layer, number of the first row, texels of this and the following rows


def texels(n: int) -> int:
    """Rounds n values up to whole texels."""
    return -(-n // 4) * 4


@dataclass(frozen=True)
class Layout:
    """The layout of a matrix `[rows, cols]` in `tiles` = (number of row tiles, number of column tiles).

    `dtype` is the name of the storage format. `panel` is the width of a panel in texels (0: no panels), and `stack` is
    the number of panels in a layer. Raises ValueError for an empty layout, for an unknown format, for column tiles that
    do not fill the texels, and for a `stack` without panels.
    """

    rows: int
    cols: int
    tiles: tuple[int, int] = (1, 1)
    dtype: str = "f32"
    panel: int = 0
    stack: int = 1

    def __post_init__(self) -> None:
        if min(self.rows, self.cols, *self.tiles, self.stack) < 1 or self.panel < 0:
            raise ValueError(f"empty layout {self}")
        if self.dtype not in ALL:
            raise ValueError(f"a layout cannot be stored as {self.dtype!r}, only as {', '.join(ALL)}")
        if self.tiles[1] % self.format.column_tiles_per_texel or (self.stack > 1 and not self.panel):
            raise ValueError(f"a layout of {self.dtype} cannot have {self.tiles} tiles, {self.stack} panels in a layer")

    @property
    def format(self) -> Format:
        """Returns the storage format."""
        return ALL[self.dtype]

    @property
    def height(self) -> int:
        """Returns the number of matrix rows in a tile."""
        return -(-self.rows // self.tiles[0])

    @property
    def stored_height(self) -> int:
        """Returns the number of rows of texels in a tile, including the rows of scales above each group."""
        return _stored(self.height, self.format)

    def stored_row(self, row: int) -> int:
        """Returns which row of texels of a tile holds the given matrix row of the tile."""
        fmt = self.format
        return row + (row // fmt.group + 1) * fmt.scale_rows if fmt.quantised else row

    @property
    def width(self) -> int:
        """Returns the width of a tile in texels."""
        return -(-self.cols // (4 * self.tiles[1]))

    @property
    def groups(self) -> int:
        """Returns the number of groups of column tiles that share texels."""
        return self.tiles[1] // self.format.column_tiles_per_texel

    @property
    def row_texels(self) -> int:
        """Returns the number of texels that hold a row of the matrix."""
        return self.groups * self.width

    @property
    def panels(self) -> int:
        """Returns the number of panels of a group of column tiles; 1 if the layout has no panels."""
        return -(-self.width // self.texture_width)

    @property
    def texture_width(self) -> int:
        """Returns the width of the texture in texels."""
        return self.panel or self.width

    @property
    def texture_height(self) -> int:
        """Returns the height of the texture in texels."""
        return self.stored_height * self.stack

    @property
    def across(self) -> int:
        """Returns the number of layers that hold one row tile, with all its column tiles."""
        return -(-self.groups * self.panels // self.stack)

    @property
    def layers(self) -> int:
        """Returns the number of layers of the texture."""
        return self.tiles[0] * self.across

    @property
    def nbytes(self) -> int:
        """Returns the size of the texture in bytes."""
        return self.texture_width * self.texture_height * self.layers * 16

    def layer(self, matrix: Matrix, index: int, y: int = 0, rows: int | None = None) -> Texels:
        """Packs rows of one layer: returns texels `[rows, texture_width, 4]` of layer `index` for `matrix`.

        The first row is y, and `rows` is the maximum number of rows (None: up to the end of the layer).
        """
        end = self.texture_height if rows is None else min(self.texture_height, y + rows)
        i, first = index // self.across, index % self.across * self.stack
        bands = []
        for s in range(y // self.stored_height, -(-end // self.stored_height)):
            top = s * self.stored_height
            strip = (i, *divmod(first + s, self.panels))
            read = self._quantised if self.format.quantised else self._packed
            bands.append(read(matrix, strip, max(y - top, 0), min(end - top, self.stored_height)))
        return bands[0] if len(bands) == 1 else np.concatenate(bands)

    def bands(self, matrix: Matrix) -> Iterator[Band]:
        """Yields all texels of `matrix` in bands, each of which is packed when the caller takes it.

        A band has rows of one layer, up to `BAND_BYTES`.
        """
        rows = max(1, BAND_BYTES // (self.texture_width * 16))
        for layer in range(self.layers):
            for y in range(0, self.texture_height, rows):
                yield layer, y, self.layer(matrix, layer, y, rows)

    def _packed(self, matrix: Matrix, strip: tuple[int, int, int], y: int, end: int) -> Texels:
        """Returns the rows of texels from y to `end` (excluded) of a strip.

        A strip is (row tile, group of column tiles, panel).
        """
        return self.format.pack(self._values(matrix, strip, strip[0] * self.height + y, end - y))

    def _quantised(self, matrix: Matrix, strip: tuple[int, int, int], y: int, end: int) -> Texels:
        """Returns the same as `_packed` for a quantised format: first packs all groups that overlap these rows."""
        fmt = self.format
        step = fmt.group + fmt.scale_rows
        first, last = y // step, -(-end // step)
        rows = max(0, min(self.height, matrix.shape[0] - strip[0] * self.height))  # matrix rows in this tile
        whole = max(first, min(last, rows // fmt.group))
        if first < whole == last:
            texels = self._groups(matrix, strip, first, last, fmt.group)
        else:
            texels = np.zeros((last - first, step, self.texture_width, 4), np.uint32)
            if whole > first:
                texels[: whole - first] = self._groups(matrix, strip, first, whole, fmt.group)
            if whole < last and rows > whole * fmt.group:  # the tile's last group has fewer rows
                part = self._groups(matrix, strip, whole, whole + 1, rows - whole * fmt.group)
                texels[whole - first, : part.shape[1]] = part[0]
        return texels.reshape(-1, self.texture_width, 4)[y - first * step : end - first * step]

    def _groups(self, matrix: Matrix, strip: tuple[int, int, int], first: int, last: int, rows: int) -> Texels:
        """Returns the groups from `first` to `last` (excluded) of a strip as texels; each group's scales precede it.

        Each group has `rows` rows.
        """
        fmt = self.format
        count, top = last - first, strip[0] * self.height + first * fmt.group
        if not isinstance(matrix, Blocks) or matrix.coding != fmt.coding:
            found = self._values(matrix, strip, top, count * rows)
            return fmt.quantise(found.reshape(count, rows, *found.shape[1:]))
        if self.tiles[0] > 1 and self.height % fmt.group:
            raise ValueError(f"blocks of {fmt.group} rows do not fit tiles of {self.height} rows")
        levels = [
            tile.reshape(count, rows, *tile.shape[1:]) for tile in self._tiles(matrix.levels, strip, top, count * rows)
        ]
        at = top // fmt.group
        minima = None if matrix.minima is None else self._joined(matrix.minima, strip, at, count)
        return fmt.pack_parts(levels, self._joined(matrix.scales, strip, at, count), minima)

    def _values(self, matrix: NDArray[Any] | Blocks, strip: tuple[int, int, int], top: int, rows: int) -> Floats:
        """Returns `rows` matrix rows from `top` on, in the columns of a strip.

        The result is float32 `[rows, texture_width, values of a texel]`.
        """
        return self._joined(matrix, strip, top, rows).astype(np.float32, copy=False)

    def _joined(self, matrix: NDArray[Any] | Blocks, strip: tuple[int, int, int], top: int, rows: int) -> NDArray[Any]:
        """Returns what `_values` returns, in the number type of the matrix."""
        tiles = self._tiles(matrix, strip, top, rows)
        return np.concatenate(tiles, axis=2) if len(tiles) > 1 else tiles[0]

    def _tiles(
        self, matrix: NDArray[Any] | Blocks, strip: tuple[int, int, int], top: int, rows: int
    ) -> list[NDArray[Any]]:
        """Returns `rows` matrix rows from `top` on for each column tile of a strip, as views if possible.

        Each array is `[rows, texture_width, 4]`.
        """
        (_, group, panel), shared = strip, self.format.column_tiles_per_texel
        return [self._block(matrix, top, rows, group * shared + t, panel) for t in range(shared)]

    def _block(self, matrix: NDArray[Any] | Blocks, top: int, rows: int, j: int, panel: int) -> NDArray[Any]:
        """Returns matrix rows in the columns that column tile j has in a panel: `[rows, texture_width, 4]`."""
        w = 4 * self.texture_width
        left = 4 * (j * self.width + panel * self.texture_width)
        right = min(left + w, 4 * (j + 1) * self.width)
        block = matrix[top : top + rows, left:right]
        if block.shape != (rows, w):
            whole = np.zeros((rows, w), block.dtype)
            whole[: block.shape[0], : block.shape[1]] = block
            block = whole
        return block.reshape(rows, self.texture_width, 4)

    def pack(self, matrix: Matrix) -> Texels:
        """Packs a matrix `[rows, cols]` as texels `[layers, texture_height, texture_width, 4]`, float32 or uint32."""
        return np.stack([self.layer(matrix, i) for i in range(self.layers)])

    def unpack(self, texels: Texels) -> Floats:
        """Unpacks texels `[layers, texture_height, texture_width, 4]` to a float32 matrix `[rows, cols]`."""
        (tr, _), h, w, shared = self.tiles, self.height, self.texture_width, self.format.column_tiles_per_texel
        strips = texels.reshape(tr * self.across * self.stack, self.stored_height, w, 4)
        read = self._dequantised(strips) if self.format.quantised else self.format.unpack(strips)
        values = read.reshape(tr, self.across * self.stack, h, w, shared, 4)
        used = values[:, : self.groups * self.panels].reshape(tr, self.groups, self.panels, h, w, shared, 4)
        tiles = used.transpose(0, 3, 1, 5, 2, 4, 6).reshape(tr * h, self.groups * shared, self.panels * w, 4)
        whole = tiles[:, :, : self.width].reshape(tr * h, -1)
        return np.ascontiguousarray(whole[: self.rows, : self.cols], np.float32)

    def _dequantised(self, strips: Texels) -> Floats:
        """Converts texels `[strips, stored_height, width, 4]` to floats `[strips, height, width, values per texel]`."""
        fmt, (count, stored, w, _) = self.format, strips.shape
        step = fmt.group + fmt.scale_rows
        groups = -(-self.height // fmt.group)
        whole = np.zeros((count, groups * step, w, 4), np.uint32)
        whole[:, :stored] = strips
        values = fmt.dequantise(whole.reshape(count * groups, step, w, 4))
        return values.reshape(count, groups * fmt.group, w, fmt.values_per_texel)[:, : self.height]

    def segments(self, weight: Layout) -> Iterator[tuple[int, int, list[tuple[int, int]], int]]:
        """Yields the segments of the inner dimension of a product: this layout times `weight` `[cols, n]`.

        A segment is a range of texels of a row of the left factor that lies in one tile, and whose matching rows of
        `weight` lie in one tile too. It is a tuple (layer within a row tile, first texel in the layer, starts, number
        of texels). `starts` has an item for each column tile that shares these texels: the first matching row of
        `weight`, as (row tile, row within the tile).
        """
        end, shared = -(-self.cols // 4), self.format.column_tiles_per_texel
        for layer in range(self.across):
            x0 = 0
            while x0 < self.width:
                n, starts = self.width - x0, []
                for t in range(shared):
                    k4 = (layer * shared + t) * self.width + x0
                    if k4 < end:
                        wt, w0 = divmod(4 * k4, weight.height)
                        n = min(n, end - k4, -(-(weight.height - w0) // 4))
                        starts.append((wt, w0))
                if not starts:
                    break
                yield layer, x0, starts, n
                x0 += n


@dataclass(frozen=True)
class View(Layout):
    """A layout and the name of the texture that holds it."""

    texture: str = field(kw_only=True)

    @classmethod
    def of(cls, layout: Layout, texture: str) -> View:
        """Returns `layout` as a view of a texture."""
        found = layout
        return cls(found.rows, found.cols, found.tiles, found.dtype, found.panel, found.stack, texture=texture)


def fold(rows: int, cols: int, limit: int, tile_cols: int = 1, dtype: str = "f32") -> Layout:
    """Returns the layout of a weight with as few tiles as textures of at most `limit` texels per side allow.

    The number of column tiles is a multiple of `tile_cols`, or of the number of column tiles that share a texel if that
    is larger. If there are several row tiles, their height is a multiple of four, so that the four rows that a product
    reads at a time are in one tile. For a quantised format, the height is a multiple of the number of rows in a group,
    unless that needs more than twice as many row tiles. Raises ValueError if the rows do not fit.
    """
    fmt = ALL[dtype]
    step = max(tile_cols, fmt.column_tiles_per_texel)
    tc = step
    while -(-cols // (4 * tc)) > limit:
        tc += step
    least = next((tr for tr in range(1, rows + 1) if _folds(rows, tr, limit, fmt, 4)), None)
    if least is None:
        raise ValueError(f"{rows} rows cannot be folded into tiles of at most {limit}")
    whole = (t for t in range(least, 2 * least + 1) if fmt.group and _folds(rows, t, limit, fmt, fmt.group))
    tr = next(whole, least)
    return Layout(rows, cols, (tr, tc), dtype)


def _folds(rows: int, tr: int, limit: int, fmt: Format, step: int) -> bool:
    """True if the rows fit into `tr` row tiles; if `tr` > 1, the height of a tile must be a multiple of `step`."""
    height = -(-rows // tr)
    return (tr == 1 or height % step == 0) and _stored(height, fmt) <= limit


def one_layer(rows: int, cols: int, dtype: str = "f32") -> Layout:
    """Returns the layout of a matrix in one layer, so that shaders need not compute in which tile a value is."""
    return Layout(rows, cols, (1, ALL[dtype].column_tiles_per_texel), dtype)


def _stored(height: int, fmt: Format) -> int:
    """Returns the number of rows of texels in a tile of `height` matrix rows."""
    return height + (-(-height // fmt.group) * fmt.scale_rows if fmt.quantised else 0)


def in_panels(rows: int, cols: int, limit: int, panel: int, dtype: str = "f32", exact: bool = False) -> Layout:
    """Returns the layout of a weight in panels, stacked in as few layers as textures of `limit` rows allow.

    The layout has the tiles of `fold`. With `exact`, panels are `panel` texels wide. Otherwise, there are as many
    panels as with this width, but they are as narrow as possible. Raises ValueError if a panel has more than `limit`
    rows of texels.
    """
    high = _stored(rows, ALL[dtype])
    if high > limit:
        raise ValueError(f"{rows} rows cannot be stacked in a texture of {limit}")
    whole = fold(rows, cols, limit, dtype=dtype)
    panels = -(-whole.width // panel)  # of each group of tiles
    layers = -(-whole.groups * panels // (limit // high))
    wide = panel if exact else -(-whole.width // panels)
    return replace(whole, panel=wide, stack=-(-whole.groups * panels // layers))
