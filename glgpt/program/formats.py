"""Storage formats: how numbers are packed in 128-bit texels. One entry here, one include in `glsl/formats/`.

Column tiles that share a texel are `column_tiles_per_texel` neighbouring tiles of a `Layout`, so that one fetch feeds
as many accumulators. To add a format:

- an entry of `FORMATS`;
- `glsl/formats/<name>.glsl` with `<name>_decode(texel, tile)`, the vec4 of one of the texel's column tiles, and, if
  it is not quantised, `<name>_encode(tile 0, tile 1, ...)` and `<name>_one(texel, tile, c)`, column c of the vec4;
- an entry of `FORMATS` in the page's `engine/formats.ts`;
- a style in `tests/ops/test_ops.py`; the tests of layouts and of the GLSL run over `FORMATS`.

Quantised formats (`quantised`) hold integers, and scales beside them: above each `group` rows of a tile lie the
`scale_rows` rows of texels that hold the scales of its columns. Only weights are stored so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.program import quantised

Floats = NDArray[np.float32]
Texels = NDArray[np.float32 | np.uint32]  # RGBA32F or RGBA32UI


@dataclass(frozen=True)
class Format:
    """A way of storing numbers in texels.

    `texture` is the format of the texture, "float" or "uint". `pack` takes float32 `[..., values_per_texel]`, four
    values of each column tile in turn, and gives texels `[..., 4]`; `unpack` is the way back, to float32. `spacing` is
    the distance from 1 to the next larger number; a normal number is rounded by at most half of it, relatively.
    `largest` is the largest finite number. `roundings` is how many spacings a tensor of a shallow model may be from its
    reference, relatively (see `program.tolerance`); of f32 more, since its long sums are rounded as well.

    Of a quantised format, `pack` and `unpack` are those of the integers, of `bits` bits each; each column has a scale
    for every `group` rows, and `spacing` is relative to the greatest number of a group. What products take and give
    beside such weights is stored as `activations`, the weights outside of the blocks (embedding and head) as `outer`,
    and the table of positions as `positions`.
    """

    name: str
    texture: str
    values_per_texel: int
    spacing: float
    largest: float
    roundings: float
    pack: Callable[[Floats], Texels]
    unpack: Callable[[Texels], Floats]
    bits: int = 0
    group: int = 0
    activations: str = ""
    outer: str = ""
    positions: str = "f32"

    @property
    def column_tiles_per_texel(self) -> int:
        """Column tiles that share a texel: four values of each."""
        return self.values_per_texel // 4

    @property
    def packed(self) -> bool:
        """Whether a texel holds more than one column tile."""
        return self.values_per_texel > 4

    @property
    def quantised(self) -> bool:
        """Whether it holds integers and scales."""
        return self.group > 0

    @property
    def scale_rows(self) -> int:
        """Rows of texels that hold the scales of a group of rows; 0 where there are none."""
        return self.values_per_texel // quantised.SCALES_PER_TEXEL if self.quantised else 0

    @property
    def includes(self) -> tuple[str, ...]:
        """The files in `glsl/` that decode and encode it."""
        return (*(["formats/scales.glsl"] if self.quantised else []), f"formats/{self.name}.glsl")

    def quantise(self, values: Floats) -> Texels:
        """Texels `[groups, scale_rows + group, n, 4]` of the groups `[groups, group, n, values_per_texel]`."""
        integers, scales = quantised.quantise(values, self.bits)
        above = quantised.pack_scales(scales, self.scale_rows)
        return np.concatenate([above, self.pack(integers)], axis=1)

    def dequantise(self, texels: Texels) -> Floats:
        """The groups that `quantise` packed, as they are read."""
        scales = quantised.unpack_scales(texels[:, : self.scale_rows])
        integers = self.unpack(texels[:, self.scale_rows :]).reshape(len(texels), self.group, *scales.shape[1:])
        found: Floats = integers * scales[:, None]
        return found


def _as_they_are(values: Any) -> Any:
    return values


def _pack_halves(values: Floats) -> Texels:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)


def _unpack_halves(texels: Texels) -> Floats:
    return np.ascontiguousarray(texels).view(np.float16).astype(np.float32)


LARGEST = float(np.finfo(np.float32).max)


def _quantised(bits: int, pack: Callable[[Floats], Texels], unpack: Callable[[Texels], Floats], **more: Any) -> Format:
    """Integers of so many bits, named after them."""
    return Format(
        f"q{bits}", "uint", 128 // bits, 1 / (2 ** (bits - 1) - 1), LARGEST, 3.0, pack, unpack,
        bits=bits, group=128, activations="f16", positions="q8", **more,
    )  # fmt: skip


FORMATS = {
    f.name: f
    for f in (
        Format("f32", "float", 4, 2.0**-23, LARGEST, 128.0, _as_they_are, _as_they_are),
        Format("f16", "uint", 8, 2.0**-10, 65504.0, 3.0, _pack_halves, _unpack_halves),
        _quantised(8, quantised.pack_bytes, quantised.unpack_bytes),
        _quantised(4, quantised.pack_nibbles, quantised.unpack_nibbles, outer="q8"),
    )
}
