"""The register blocks of products, among which a device is probed for the fastest."""

from __future__ import annotations

from dataclasses import dataclass

from glgpt.program.formats import Format
from glgpt.program.spec import Limits


@dataclass(frozen=True)
class Kernel:
    """The register block of a product: each fragment computes `rows` x 4 `tile_cols` values, by row and column tiles.

    4x4 fits four draw buffers; 4x8 and 8x4 need eight. `contiguous`: in a one-row product, how many neighbouring texels
    of columns a fragment takes, from f32 weights in panels (`ops.panels`); 0 = strided columns, two that are half the
    row apart, from weights without panels.
    """

    tile_rows: int
    tile_cols: int
    contiguous: int = 0

    @property
    def suits_software(self) -> bool:
        """Whether it is meant for software GL, where alone contiguous columns pay."""
        return self.contiguous > 0

    @property
    def name(self) -> str:
        """As on the command line: rows x columns of one fragment."""
        return f"{self.tile_rows}x{4 * self.tile_cols}"

    @property
    def label(self) -> str:
        """The name, and whether one-row products take contiguous columns: `4x8`, or `8x4-contiguous`."""
        return self.name + ("-contiguous" if self.contiguous else "")

    def for_format(self, fmt: Format, limits: Limits) -> Kernel:
        """The kernel for products whose rows are stored in a format: of a packed one with the columns of a texel.

        That has as many row tiles as there are draw buffers for.
        """
        if not fmt.packed:
            return self
        return Kernel(8 if limits.max_draw_buffers >= 8 else 4, fmt.column_tiles_per_texel, self.contiguous)


KERNELS = {k.name: k for k in (Kernel(4, 1), Kernel(4, 2), Kernel(8, 1))}
