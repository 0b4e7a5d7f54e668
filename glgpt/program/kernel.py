"""The register blocks of products, among which a device is probed for the fastest."""

from __future__ import annotations

from dataclasses import dataclass

from glgpt.program.spec import Limits


@dataclass(frozen=True)
class Kernel:
    """The register block of a product: each fragment computes `rows` x 4 `tile_cols` values, by row and column tiles.

    4x4 fits four draw buffers; 4x8 and 8x4 need eight. `near`: in a product of one row, how many neighbouring texels
    of columns a fragment takes, from weights in panels (`ops.panels`); 0 = two that lie half the row apart.
    """

    tile_rows: int
    tile_cols: int
    near: int = 0

    @property
    def name(self) -> str:
        """As on the command line: rows x columns of one fragment."""
        return f"{self.tile_rows}x{4 * self.tile_cols}"

    @property
    def label(self) -> str:
        """The name, and whether one-row products take neighbours: `4x8`, or `8x4-near`."""
        return self.name + ("-near" if self.near else "")

    def packed(self, limits: Limits) -> Kernel:
        """The kernel of packed halves: as many row tiles as there are draw buffers for, column tiles in pairs."""
        return Kernel(8 if limits.max_draw_buffers >= 8 else 4, 2, self.near)


KERNELS = {k.name: k for k in (Kernel(4, 1), Kernel(4, 2), Kernel(8, 1))}
