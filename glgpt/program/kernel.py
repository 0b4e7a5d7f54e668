"""The register blocks of matrix products; a probe finds the fastest one on a device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glgpt.program.formats import Format
from glgpt.program.spec import Limits


@dataclass(frozen=True)
class Kernel:
    """The register block of a product: each fragment computes `tile_rows` x 4 `tile_cols` values, a texel of each tile.

    4x4 fits four draw buffers; 4x8 and 8x4 need eight. `contiguous` is the number of neighbouring texels that a
    fragment of a one-row product takes from f32 weights in panels (`ops.panels`). If it is 0, weights have no panels,
    and a fragment takes two texels at a distance of half a row. With `blends`, the device adds up the slices of one-row
    products by blending (`ops.products`), which takes eight draw buffers; else another pass adds up partial sums. With
    `pairs`, two pixels add up their slices before they are blended, which takes derivatives of each column of a quad.
    """

    tile_rows: int
    tile_cols: int
    contiguous: int = 0
    blends: bool = False
    pairs: bool = False

    @property
    def suits_software(self) -> bool:
        """True if the kernel is meant for software GL, the only place where contiguous columns are faster."""
        return self.contiguous > 0

    @property
    def name(self) -> str:
        """Returns the name used on the command line: rows x columns of one fragment."""
        return f"{self.tile_rows}x{4 * self.tile_cols}"

    @property
    def unblended(self) -> Kernel:
        """Returns the kernel without blending, as the probe measures it."""
        return replace(self, blends=False, pairs=False)

    @property
    def label(self) -> str:
        """Returns the name and the kind of one-row products: `4x8`, `8x4-contiguous`, `4x8-blended` or `4x8-paired`."""
        blended = "-paired" if self.pairs else "-blended" if self.blends else ""
        return self.name + ("-contiguous" if self.contiguous else blended)

    def for_format(self, fmt: Format, limits: Limits) -> Kernel:
        """Returns the kernel for products whose rows are stored in a format.

        For a packed format it has the column tiles of one texel, and as many row tiles as the draw buffers allow.
        """
        if not fmt.packed:
            return self
        rows = 8 if limits.max_draw_buffers >= 8 else 4
        return replace(self, tile_rows=rows, tile_cols=fmt.column_tiles_per_texel)


KERNELS = {k.name: k for k in (Kernel(4, 1), Kernel(4, 2), Kernel(8, 1))}
