"""Defines storage formats, which pack numbers into 128-bit texels; `glsl/formats` has a file for each format.

A texel may hold values of several neighbouring column tiles of a `Layout` (`column_tiles_per_texel`). With one fetch, a
shader then gets values of all these tiles. A new format needs:

- an entry of `FORMATS`;
- `glsl/formats/<name>.glsl` with `<name>_decode(texel, tile)`, which returns the four values of one of the texel's
  column tiles. If the format is not quantised, the file also has `<name>_encode(tile 0, tile 1, ...)`, which returns a
  texel, and `<name>_one(texel, tile, c)`, which returns only value c of the four;
- a run of `make schema`, which writes the page's table of formats;
- a style in `tests/helpers/op_bench.py`; the tests of layouts and of the GLSL iterate over `FORMATS`.

Quantised formats have a `Coding`, which stores numbers as levels (small integers) and scales: see `quantised`. In a
texture, each group of `group` rows of a tile is preceded by `scale_rows` rows of texels with the scales, and possibly
minima, of the group. Only weights are stored in quantised formats. The formats in `STORED` are for weights that a file
already holds as levels and scales, such as a GGUF file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.program.quantised import Coding

Floats = NDArray[np.float32]
Texels = NDArray[np.float32 | np.uint32]  # RGBA32F or RGBA32UI


@dataclass(frozen=True)
class Format:
    """A way of storing numbers in texels.

    `texture` is the format of the texture, "float" or "uint". `pack` converts float32 `[..., values_per_texel]` to
    texels `[..., 4]`, and `unpack` converts texels back; the values are four of the first column tile, then four of the
    next one. `spacing` is the distance from 1 to the next larger number; the relative rounding error of a normal number
    is at most half of `spacing`. `largest` is the largest finite number. `roundings` is the tolerated relative error as
    a multiple of `spacing`; `program.tolerance` scales it with the depth of a model. f32 has the largest multiple: sums
    are computed in f32, so every term of a long sum adds a rounding error of this size.

    For a quantised format, `pack` and `unpack` convert the levels of its `coding`, and `spacing` is relative to the
    greatest number of a group. In a product of several rows with a weight in such a format, the rows are stored in the
    format `activations`. The weights that lose the most accuracy with few bits, such as the embedding and the head, are
    stored as `outer` ("": like other weights). If a model's weights have this format, quantised or not, its table of
    position embeddings is stored as `positions`.
    """

    name: str
    texture: str
    values_per_texel: int
    spacing: float
    largest: float
    roundings: float
    pack: Callable[[Floats], Texels]
    unpack: Callable[[Texels], Floats]
    coding: Coding | None = None
    activations: str = ""
    outer: str = ""
    positions: str = "f32"

    @property
    def column_tiles_per_texel(self) -> int:
        """Returns the number of column tiles that share a texel, which holds four values of each."""
        return self.values_per_texel // 4

    @property
    def packed(self) -> bool:
        """True if a texel holds values of more than one column tile."""
        return self.values_per_texel > 4

    @property
    def quantised(self) -> bool:
        """True if the format holds levels and scales."""
        return self.coding is not None

    @property
    def group(self) -> int:
        """Returns the number of rows of a column that share a scale; 0 if the format has no scales."""
        return self.coding.group if self.coding else 0

    @property
    def scale_rows(self) -> int:
        """Returns the number of rows of texels that hold the scales of a group of rows; 0 without scales."""
        return self.coding.scale_rows if self.coding else 0

    @property
    def includes(self) -> tuple[str, ...]:
        """Returns the files in `glsl/` that decode and encode the format."""
        own = (f"formats/{self.name}.glsl",)
        if not self.coding:
            return own
        return (*([] if self.coding.wide else ["formats/f16.glsl"]), "formats/scaling.glsl", *own)

    def quantise(self, values: Floats) -> Texels:
        """Quantises groups `[groups, rows, n, values_per_texel]` as texels `[groups, scale_rows + rows, n, 4]`."""
        levels, scales, minima = self._coding.quantise(values)
        return self.pack_parts(np.split(levels, self.column_tiles_per_texel, axis=-1), scales, minima)

    def pack_parts(
        self, levels: Sequence[NDArray[Any]], scales: NDArray[Any], minima: NDArray[Any] | None
    ) -> NDArray[np.uint32]:
        """Returns the same texels as `quantise`, from levels, scales and minima.

        `levels` has an array `[groups, rows, n, 4]` for each column tile; scales and minima are
        `[groups, n, values_per_texel]`.
        """
        groups, rows, n, _ = levels[0].shape
        texels = np.empty((groups, self.scale_rows + rows, n, 4), np.uint32)
        texels[:, : self.scale_rows] = self._coding.pack_scales(scales, minima)
        texels[:, self.scale_rows :] = self._coding.pack_tiles(levels)
        return texels

    def dequantise(self, texels: Texels) -> Floats:
        """Returns the groups `[groups, rows, n, values_per_texel]` that shaders decode from texels of `quantise`."""
        scales, minima = self._coding.unpack_scales(texels[:, : self.scale_rows])
        levels = self.unpack(texels[:, self.scale_rows :])
        found: Floats = levels * scales[:, None]
        return found if minima is None else found + minima[:, None]

    @property
    def _coding(self) -> Coding:
        if self.coding is None:
            raise ValueError(f"{self.name} has no levels")
        return self.coding


def _identity(values: Any) -> Any:
    return values


def _pack_f16(values: Floats) -> Texels:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)


def _unpack_f16(texels: Texels) -> Floats:
    return np.ascontiguousarray(texels).view(np.float16).astype(np.float32)


MAX_FLOAT32 = float(np.finfo(np.float32).max)


def _quantised(name: str, coding: Coding, **more: Any) -> Format:
    """Returns a format of levels and scales."""
    step = 1 / coding.range[1] * (2 if coding.minimum else 1)
    return Format(
        name, "uint", 4 * coding.tiles, step, MAX_FLOAT32, 3.0, coding.pack_levels, coding.unpack_levels,
        coding=coding, activations="f16", positions="q8", **more,
    )  # fmt: skip


FORMATS = {
    f.name: f
    for f in (
        Format("f32", "float", 4, 2.0**-23, MAX_FLOAT32, 128.0, _identity, _identity),
        Format("f16", "uint", 8, 2.0**-10, 65504.0, 3.0, _pack_f16, _unpack_f16),
        _quantised("q8", Coding(8)),
        _quantised("q4", Coding(4, minimum=True), outer="q8"),
    )
}
# Formats for weights that a file already holds as levels and scales. These formats have the names of GGUF's types, and
# users cannot select them.
STORED = {
    f.name: f
    for f in (
        _quantised("q5_1", Coding(8, minimum=True)),
        _quantised("q4_k", Coding(4, minimum=True, wide=True)),
        _quantised("q5_k", Coding(8, minimum=True, wide=True)),
        _quantised("q6_k", Coding(8, group=16, wide=True)),
        _quantised("q2_k", Coding(8, group=16, minimum=True, wide=True, signed=True)),  # holds every type of GGUF
    )
}
ALL = FORMATS | STORED
# The dtype of a model whose textures hold the numbers of its files exactly; each tensor has the format that this needs.
AS_STORED = "stored"
DTYPES = (*FORMATS, AS_STORED)
