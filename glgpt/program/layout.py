"""Where a matrix is in a texture, and packing to and from numpy.

The matrix is cut into `tiles = (tr, tc)`, an equal grid; rows and columns of a tile are contiguous in the matrix. Texel
`(r, c4)` of a tile holds its columns `4*c4 .. 4*c4+3`. Neighbouring column tiles share texels where the storage format
packs more than four values into one (`formats`), and each such group of tiles is a layer.

A group may instead be cut into panels: strips of `panel` texels, of which a layer holds `stack`, one below the other.
The rows of a panel follow each other in memory. Everything beyond the matrix is zero.

A quantised format has the scales of each group of rows in rows of texels above it, in the same columns of texels, so
that a tile is `stored_height` rows high and its row r is at `stored_row(r)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from glgpt.program.formats import FORMATS, Floats, Format, Texels


def texels(n: int) -> int:
    """n values padded to whole texels."""
    return -(-n // 4) * 4


@dataclass(frozen=True)
class Layout:
    """Matrix `[rows, cols]` in `tiles` = (tile rows, tile columns), stored as `dtype`, the name of a format.

    `panel` is the width of a panel in texels, 0 for none, and `stack` the panels in a layer. Raises ValueError for an
    empty layout, an unknown format, or column tiles that do not fill its texels.
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
        if self.dtype not in FORMATS:
            raise ValueError(f"a layout cannot be stored as {self.dtype!r}, only as {', '.join(FORMATS)}")
        if self.tiles[1] % self.format.column_tiles_per_texel or (self.stack > 1 and not self.panel):
            raise ValueError(f"a layout of {self.dtype} cannot have {self.tiles} tiles, {self.stack} in a layer")

    @property
    def format(self) -> Format:
        """How its numbers are stored."""
        return FORMATS[self.dtype]

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return -(-self.rows // self.tiles[0])

    @property
    def stored_height(self) -> int:
        """Rows of texels of a tile: its own, and those of the scales above each group of rows."""
        return _stored(self.height, self.format)

    def stored_row(self, row: int) -> int:
        """The row of texels that holds a row of a tile."""
        fmt = self.format
        return row + (row // fmt.group + 1) * fmt.scale_rows if fmt.quantised else row

    @property
    def width(self) -> int:
        """Texels across a tile."""
        return -(-self.cols // (4 * self.tiles[1]))

    @property
    def groups(self) -> int:
        """Groups of column tiles that share texels."""
        return self.tiles[1] // self.format.column_tiles_per_texel

    @property
    def row_texels(self) -> int:
        """Texels that hold a row of the matrix, from one row of tiles."""
        return self.groups * self.width

    @property
    def panels(self) -> int:
        """Panels of a group of column tiles; 1 where there are none."""
        return -(-self.width // self.texture_width)

    @property
    def texture_width(self) -> int:
        """Texels across the texture."""
        return self.panel or self.width

    @property
    def texture_height(self) -> int:
        """Rows of the texture."""
        return self.stored_height * self.stack

    @property
    def across(self) -> int:
        """Layers that hold a row of tiles."""
        return -(-self.groups * self.panels // self.stack)

    @property
    def layers(self) -> int:
        """Layers of the texture."""
        return self.tiles[0] * self.across

    @property
    def nbytes(self) -> int:
        """Bytes of the texture."""
        return self.texture_width * self.texture_height * self.layers * 16

    def layer(self, matrix: NDArray[np.floating], index: int, y: int = 0, rows: int | None = None) -> Texels:
        """The texels `[rows, texture_width, 4]` of one layer of `matrix` `[rows, cols]`: `rows` (None: all) from y."""
        end = self.texture_height if rows is None else min(self.texture_height, y + rows)
        i, first = index // self.across, index % self.across * self.stack
        bands = []
        for s in range(y // self.stored_height, -(-end // self.stored_height)):
            top = s * self.stored_height
            strip = (i, *divmod(first + s, self.panels))
            read = self._quantised if self.format.quantised else self._packed
            bands.append(read(matrix, strip, max(y - top, 0), min(end - top, self.stored_height)))
        return bands[0] if len(bands) == 1 else np.concatenate(bands)

    def _packed(self, matrix: NDArray[np.floating], strip: tuple[int, int, int], y: int, end: int) -> Texels:
        """Rows y..end of texels of a strip, (row tile, group of column tiles, panel)."""
        return self.format.pack(self._values(matrix, strip, y, end))

    def _quantised(self, matrix: NDArray[np.floating], strip: tuple[int, int, int], y: int, end: int) -> Texels:
        """The same of a quantised format: whole groups of rows, of which those asked for are returned."""
        fmt = self.format
        step = fmt.group + fmt.scale_rows
        first, last = y // step, -(-end // step)
        values = self._values(matrix, strip, first * fmt.group, min(last * fmt.group, self.height))
        whole = np.zeros((last - first, fmt.group, *values.shape[1:]), np.float32)
        whole.reshape(-1, *values.shape[1:])[: len(values)] = values
        texels = fmt.quantise(whole)
        return texels.reshape(-1, *texels.shape[2:])[y - first * step : end - first * step]

    def _values(self, matrix: NDArray[np.floating], strip: tuple[int, int, int], y: int, end: int) -> Floats:
        """Float32 `[rows, texture_width, values of a texel]`: rows y..end of a strip."""
        (i, group, panel), shared = strip, self.format.column_tiles_per_texel
        tiles = [self._block(matrix, i, group * shared + t, panel, y, end) for t in range(shared)]
        return np.concatenate(tiles, axis=2) if len(tiles) > 1 else tiles[0]

    def _block(self, matrix: NDArray[np.floating], i: int, j: int, panel: int, y: int, end: int) -> Floats:
        """Float32 `[rows, texture_width, 4]`: rows y..end of tile (i, j), of its columns those in a panel."""
        end, w = min(end, self.height), 4 * self.texture_width
        top, left = i * self.height, 4 * (j * self.width + panel * self.texture_width)
        right = min(left + w, 4 * (j + 1) * self.width)
        block = matrix[top + y : top + end, left:right]
        out = np.zeros((end - y, w), np.float32)
        out[: block.shape[0], : block.shape[1]] = block
        return out.reshape(end - y, self.texture_width, 4)

    def pack(self, matrix: NDArray[np.floating]) -> Texels:
        """`[rows, cols]` to texels `[layers, texture_height, texture_width, 4]`, float32 or uint32."""
        return np.stack([self.layer(matrix, i) for i in range(self.layers)])

    def unpack(self, texels: Texels) -> Floats:
        """Texels `[layers, texture_height, texture_width, 4]` to `[rows, cols]` float32."""
        (tr, _), h, w, shared = self.tiles, self.height, self.texture_width, self.format.column_tiles_per_texel
        strips = texels.reshape(tr * self.across * self.stack, self.stored_height, w, 4)
        read = self._dequantised(strips) if self.format.quantised else self.format.unpack(strips)
        values = read.reshape(tr, self.across * self.stack, h, w, shared, 4)
        used = values[:, : self.groups * self.panels].reshape(tr, self.groups, self.panels, h, w, shared, 4)
        tiles = used.transpose(0, 3, 1, 5, 2, 4, 6).reshape(tr * h, self.groups * shared, self.panels * w, 4)
        whole = tiles[:, :, : self.width].reshape(tr * h, -1)
        return np.ascontiguousarray(whole[: self.rows, : self.cols], np.float32)

    def _dequantised(self, strips: Texels) -> Floats:
        """Float32 `[strips, height, width, values of a texel]` of texels `[strips, stored_height, width, 4]`."""
        fmt, (count, stored, w, _) = self.format, strips.shape
        step = fmt.group + fmt.scale_rows
        groups = -(-self.height // fmt.group)
        whole = np.zeros((count, groups * step, w, 4), np.uint32)
        whole[:, :stored] = strips
        values = fmt.dequantise(whole.reshape(count * groups, step, w, 4))
        return values.reshape(count, groups * fmt.group, w, fmt.values_per_texel)[:, : self.height]

    def segments(self, weight: Layout) -> Iterator[tuple[int, int, list[tuple[int, int]], int]]:
        """How a product walks its inner dimension, with this as the left factor and `weight` `[cols, n]` the right.

        Yields (layer within a row of tiles, first texel in it, [(row tile of `weight`, first row in it)] for each
        column tile that the layer holds, texels), each run inside one tile of everything it names.
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
        """This layout in a texture."""
        found = layout
        return cls(found.rows, found.cols, found.tiles, found.dtype, found.panel, found.stack, texture=texture)


def fold(rows: int, cols: int, limit: int, tile_cols: int = 1, dtype: str = "f32") -> Layout:
    """A weight's layout of a multiple of `tile_cols` column tiles: as few tiles as `limit` texels a side allow.

    A format whose texels hold several column tiles gets a multiple of those. Row tiles are multiples of four rows, so
    that a product's step over four rows never crosses one.
    """
    fmt = FORMATS[dtype]
    step = max(tile_cols, fmt.column_tiles_per_texel)
    tc = step
    while -(-cols // (4 * tc)) > limit:
        tc += step
    tr = -(-rows // limit)
    while (tr > 1 and -(-rows // tr) % 4) or _stored(-(-rows // tr), fmt) > limit:
        tr += 1
        if tr > rows:
            raise ValueError(f"{rows} rows cannot be folded into tiles of at most {limit}")
    return Layout(rows, cols, (tr, tc), dtype)


def one_layer(rows: int, cols: int, dtype: str = "f32") -> Layout:
    """A matrix in one layer, which a shader reads without finding its tile."""
    return Layout(rows, cols, (1, FORMATS[dtype].column_tiles_per_texel), dtype)


def _stored(height: int, fmt: Format) -> int:
    """Rows of texels of a tile of `height` rows."""
    return height + (-(-height // fmt.group) * fmt.scale_rows if fmt.quantised else 0)


def in_panels(rows: int, cols: int, limit: int, panel: int, dtype: str = "f32") -> Layout:
    """A weight's layout in panels of at most `panel` texels, stacked as far as `limit` rows allow, in few layers.

    It has the tiles of `fold`. Raises ValueError for more than `limit` rows.
    """
    high = _stored(rows, FORMATS[dtype])
    if high > limit:
        raise ValueError(f"{rows} rows cannot be stacked in a texture of {limit}")
    whole = fold(rows, cols, limit, dtype=dtype)
    panels = -(-whole.width // panel)  # of each group of tiles
    layers = -(-whole.groups * panels // (limit // high))
    return replace(whole, panel=-(-whole.width // panels), stack=-(-whole.groups * panels // layers))
