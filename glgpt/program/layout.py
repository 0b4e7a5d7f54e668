"""Where a matrix lies in a texture, and packing to and from numpy.

Texel `(r, c4)` holds columns `4*c4 .. 4*c4+3`. The matrix is cut into `tiles = (tr, tc)`, an equal grid; rows and
columns of a tile are contiguous in the matrix. f32: a tile is one layer. f16: two neighbouring column tiles share one
layer, their halves packed into one 128-bit texel (x, y: the even tile; z, w: the odd one), so that one fetch feeds two
accumulators. f32 column tiles may also be stacked: `stack` of them lie below each other in a layer, so that a narrow
tile's rows follow each other in memory. Everything beyond the matrix is zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def texels(n: int) -> int:
    """n values padded to whole texels."""
    return -(-n // 4) * 4


@dataclass(frozen=True)
class Layout:
    """Matrix `[rows, cols]`, `tiles` = (tile rows, tile columns), `dtype` f32 or f16 (f16 needs an even tile count).

    `stack` is how many column tiles a layer holds, one below the other (f32 only).
    """

    rows: int
    cols: int
    tiles: tuple[int, int] = (1, 1)
    dtype: str = "f32"
    stack: int = 1

    def __post_init__(self) -> None:
        if min(self.rows, self.cols, *self.tiles, self.stack) < 1:
            raise ValueError(f"empty layout {self}")
        if self.dtype not in ("f32", "f16") or (self.dtype == "f16" and (self.tiles[1] % 2 or self.stack > 1)):
            raise ValueError(f"a layout of {self.dtype} cannot have {self.tiles} tiles, {self.stack} in a layer")

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return -(-self.rows // self.tiles[0])

    @property
    def width(self) -> int:
        """Texels across a tile."""
        return -(-self.cols // (4 * self.tiles[1]))

    @property
    def lines(self) -> int:
        """Rows of the texture."""
        return self.height * self.stack

    @property
    def pairs(self) -> int:
        """Column tiles that share one texel: 2 for f16."""
        return 2 if self.dtype == "f16" else 1

    @property
    def across(self) -> int:
        """Layers that hold a row of tiles."""
        return -(-self.tiles[1] // (self.pairs * self.stack))

    @property
    def layers(self) -> int:
        """Layers of the texture."""
        return self.tiles[0] * self.across

    @property
    def format(self) -> str:
        """The texture's format."""
        return "uint" if self.dtype == "f16" else "float"

    @property
    def nbytes(self) -> int:
        """Bytes of the texture."""
        return self.width * self.lines * self.layers * 16

    def layer(
        self, matrix: NDArray[np.floating], index: int, y: int = 0, rows: int | None = None
    ) -> Floats | NDArray[np.uint32]:
        """The texels `[rows, width, 4]` of one layer of `matrix` `[rows, cols]`: `rows` of them (None: all) from y."""
        end = self.lines if rows is None else min(self.lines, y + rows)
        i, j = index // self.across, index % self.across * self.pairs * self.stack
        if self.dtype == "f32":
            bands = []
            for s in range(y // self.height, -(-end // self.height)):
                top = s * self.height
                bands.append(self._tile(matrix, i, j + s, max(y - top, 0), min(end - top, self.height)))
            return bands[0] if len(bands) == 1 else np.concatenate(bands)
        tiles = [self._tile(matrix, i, j + p, y, end) for p in range(self.pairs)]
        with np.errstate(over="ignore"):
            halves = np.concatenate([t.astype(np.float16) for t in tiles], axis=2)
        return np.ascontiguousarray(halves).view(np.uint32)

    def _tile(self, matrix: NDArray[np.floating], i: int, j: int, y: int, end: int) -> Floats:
        top, w = i * self.height, 4 * self.width
        block = matrix[top + y : top + end, j * w : (j + 1) * w]
        out = np.zeros((end - y, w), np.float32)
        out[: block.shape[0], : block.shape[1]] = block
        return out.reshape(end - y, self.width, 4)

    def pack(self, matrix: NDArray[np.floating]) -> NDArray[np.float32] | NDArray[np.uint32]:
        """`[rows, cols]` to texels `[layers, lines, width, 4]`, float32 or (f16) uint32."""
        layers: list[Any] = [self.layer(matrix, i) for i in range(self.layers)]
        return np.stack(layers)

    def unpack(self, texels: NDArray[np.float32] | NDArray[np.uint32]) -> Floats:
        """Texels `[layers, lines, width, 4]` to `[rows, cols]` float32."""
        tr = self.tiles[0]
        if self.dtype == "f16":
            halves = np.ascontiguousarray(texels).view(np.float16).astype(np.float32)
            grid = halves.reshape(tr, self.across, self.height, self.width, 2, 4).transpose(0, 2, 1, 4, 3, 5)
        else:
            grid = texels.reshape(tr, self.across * self.stack, self.height, self.width, 4).transpose(0, 2, 1, 3, 4)
        whole = grid.reshape(tr * self.height, -1)
        return np.ascontiguousarray(whole[: self.rows, : self.cols], np.float32)

    def segments(self, weight: Layout) -> Iterator[tuple[int, int, list[tuple[int, int]], int]]:
        """How a product walks its inner dimension, with this as the left factor and `weight` `[cols, n]` the right.

        Yields (layer within a row of tiles, first texel in it, [(row tile of `weight`, first row in it)] for each
        column tile that the layer holds, texels), each run inside one tile of everything it names.
        """
        end = -(-self.cols // 4)
        for layer in range(self.across):
            x0 = 0
            while x0 < self.width:
                n, starts = self.width - x0, []
                for p in range(self.pairs):
                    k4 = (layer * self.pairs + p) * self.width + x0
                    if k4 < end:
                        wt, w0 = divmod(4 * k4, weight.height)
                        n = min(n, end - k4, -(-(weight.height - w0) // 4))
                        starts.append((wt, w0))
                if not starts:
                    break
                yield layer, x0, starts, n
                x0 += n


def fold(rows: int, cols: int, limit: int, tile_cols: int = 1, dtype: str = "f32") -> Layout:
    """A weight's layout: at least `tile_cols` column tiles, and as many more of either as `limit` texels a side ask.

    Row tiles are multiples of four rows, so that a product's step over four rows never crosses one.
    """
    tc = tile_cols
    while -(-cols // (4 * tc)) > limit:
        tc += tile_cols
    tr = -(-rows // limit)
    while tr > 1 and -(-rows // tr) % 4:
        tr += 1
        if tr > rows:
            raise ValueError(f"{rows} rows cannot be folded into tiles of at most {limit}")
    return Layout(rows, cols, (tr, tc), dtype)


def stacked(rows: int, cols: int, limit: int, width: int) -> Layout:
    """An f32 weight in column tiles of at most `width` texels, below each other as far as `limit` rows go.

    Raises ValueError for more than `limit` rows.
    """
    if rows > limit:
        raise ValueError(f"{rows} rows cannot be stacked in a texture of {limit}")
    tc = -(-cols // (4 * width))
    layers = -(-tc // (limit // rows))
    return Layout(rows, cols, (1, tc), stack=-(-tc // layers))
