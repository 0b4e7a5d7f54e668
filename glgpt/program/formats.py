"""Storage formats: how numbers are packed into 128-bit texels. Each has an entry here and a file in `glsl/formats/`.

A texel may hold values of several neighbouring column tiles of a `Layout` (`column_tiles_per_texel`), so that one fetch
feeds that many accumulators. To add a format:

- an entry of `FORMATS`;
- `glsl/formats/<name>.glsl` with `<name>_decode(texel, tile)`, the vec4 of one of the texel's column tiles, and, if
  it is not quantised, `<name>_encode(tile 0, tile 1, ...)` and `<name>_one(texel, tile, c)`, column c of the vec4;
- an entry of `FORMATS` in the page's `engine/formats.ts`;
- a style in `tests/ops/test_ops.py`; the tests of layouts and of the GLSL iterate over `FORMATS`.

Quantised formats (`quantised`) hold integers and scales: above each `group` rows of a tile there are `scale_rows` rows
of texels with the scales of its columns. Only weights are stored in quantised formats.
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

    `texture` is the format of the texture, "float" or "uint". `pack` converts float32 `[..., values_per_texel]`, four
    values of each column tile in turn, to texels `[..., 4]`; `unpack` converts them back. `spacing` is the distance
    from 1 to the next larger number; the relative rounding error of a normal number is at most half of it. `largest` is
    the largest finite number. `roundings` is the relative error, in spacings, that a tensor of a shallow model may have
    (see `program.tolerance`); f32 has more, since its long sums are rounded as well.

    For a quantised format, `pack` and `unpack` convert the integers, of `bits` bits each. Each column has a scale for
    every `group` rows, and `spacing` is relative to the greatest number of a group. Products with such weights store
    their other inputs and their outputs as `activations`. The weights outside the blocks (embedding and head) are
    stored as `outer`, and the table of positions as `positions`.
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
        """Returns the number of column tiles that share a texel, which holds four values of each."""
        return self.values_per_texel // 4

    @property
    def packed(self) -> bool:
        """True if a texel holds values of more than one column tile."""
        return self.values_per_texel > 4

    @property
    def quantised(self) -> bool:
        """True if the format holds integers and scales."""
        return self.group > 0

    @property
    def scale_rows(self) -> int:
        """Returns the number of rows of texels that hold the scales of a group of rows; 0 if it has no scales."""
        return self.values_per_texel // quantised.SCALES_PER_TEXEL if self.quantised else 0

    @property
    def includes(self) -> tuple[str, ...]:
        """Returns the files in `glsl/` that decode and encode the format."""
        return (*(["formats/scales.glsl"] if self.quantised else []), f"formats/{self.name}.glsl")

    def quantise(self, values: Floats) -> Texels:
        """Packs the groups `[groups, group, n, values_per_texel]` as `[groups, scale_rows + group, n, 4]` texels."""
        integers, scales = quantised.quantise(values, self.bits)
        above = quantised.pack_scales(scales, self.scale_rows)
        return np.concatenate([above, self.pack(integers)], axis=1)

    def dequantise(self, texels: Texels) -> Floats:
        """Returns the groups that `quantise` packed, with the values that shaders read."""
        scales = quantised.unpack_scales(texels[:, : self.scale_rows])
        integers = self.unpack(texels[:, self.scale_rows :]).reshape(len(texels), self.group, *scales.shape[1:])
        found: Floats = integers * scales[:, None]
        return found


def _identity(values: Any) -> Any:
    return values


def _pack_f16(values: Floats) -> Texels:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)


def _unpack_f16(texels: Texels) -> Floats:
    return np.ascontiguousarray(texels).view(np.float16).astype(np.float32)


MAX_FLOAT32 = float(np.finfo(np.float32).max)


def _quantised(bits: int, pack: Callable[[Floats], Texels], unpack: Callable[[Texels], Floats], **more: Any) -> Format:
    """Returns the format of integers of this many bits, named after the number."""
    return Format(
        f"q{bits}", "uint", 128 // bits, 1 / (2 ** (bits - 1) - 1), MAX_FLOAT32, 3.0, pack, unpack,
        bits=bits, group=128, activations="f16", positions="q8", **more,
    )  # fmt: skip


FORMATS = {
    f.name: f
    for f in (
        Format("f32", "float", 4, 2.0**-23, MAX_FLOAT32, 128.0, _identity, _identity),
        Format("f16", "uint", 8, 2.0**-10, 65504.0, 3.0, _pack_f16, _unpack_f16),
        _quantised(8, quantised.pack_bytes, quantised.unpack_bytes),
        _quantised(4, quantised.pack_nibbles, quantised.unpack_nibbles, outer="q8"),
    )
}
