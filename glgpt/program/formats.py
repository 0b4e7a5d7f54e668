"""Storage formats: how numbers are packed in 128-bit texels. One entry here, one include in `glsl/formats/`.

Column tiles that share a texel are `column_tiles_per_texel` neighbouring tiles of a `Layout`, so that one fetch feeds
as many accumulators. To add a format:

- an entry of `FORMATS`;
- `glsl/formats/<name>.glsl` with `<name>_decode(texel, tile)`, the vec4 of one of the texel's column tiles, and, if
  shaders write the format, `<name>_encode(tile 0, tile 1, ...)`;
- an entry of `FORMATS` in the page's `engine/formats.ts`;
- a style in `tests/ops/test_ops.py`; the tests of layouts and of the GLSL run over `FORMATS`.

A quantised format needs scales beside the texels (a second texture, groups along K): `Layout.layer` is where both
would be made from the same block of the matrix, and `shader.accessors`, which writes every `X_DECODE`, the only place
that would have to hand the scale to the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Texels = NDArray[np.float32 | np.uint32]  # RGBA32F or RGBA32UI


@dataclass(frozen=True)
class Format:
    """A way of storing numbers in texels.

    `texture` is the format of the texture, "float" or "uint". `pack` takes float32 `[..., values_per_texel]`, four
    values of each column tile in turn, and gives texels `[..., 4]`; `unpack` is the way back, to float32. `spacing` is
    the distance from 1 to the next larger number; a normal number is rounded by at most half of it, relatively.
    `largest` is the largest finite number. `tolerance` = (atol, rtol) of the logits of a whole model.
    """

    name: str
    texture: str
    values_per_texel: int
    spacing: float
    largest: float
    tolerance: tuple[float, float]
    pack: Callable[[Floats], Texels]
    unpack: Callable[[Texels], Floats]

    @property
    def column_tiles_per_texel(self) -> int:
        """Column tiles that share a texel: four values of each."""
        return self.values_per_texel // 4

    @property
    def packed(self) -> bool:
        """Whether a texel holds more than one column tile."""
        return self.values_per_texel > 4

    @property
    def include(self) -> str:
        """The file in `glsl/` that decodes and encodes it."""
        return f"formats/{self.name}.glsl"


def _as_they_are(values: Any) -> Any:
    return values


def _pack_halves(values: Floats) -> Texels:
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(np.float16)).view(np.uint32)


def _unpack_halves(texels: Texels) -> Floats:
    return np.ascontiguousarray(texels).view(np.float16).astype(np.float32)


FORMATS = {
    f.name: f
    for f in (
        Format("f32", "float", 4, 2.0**-23, float(np.finfo(np.float32).max), (2e-4, 1e-5), _as_they_are, _as_they_are),
        Format("f16", "uint", 8, 2.0**-10, 65504.0, (2e-2, 1e-3), _pack_halves, _unpack_halves),
    )
}
