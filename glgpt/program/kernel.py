"""Defines kernels, the blocks of a matrix product that one fragment computes. A probe (`glgpt.tuning`) selects one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glgpt.program.formats import Format
from glgpt.program.spec import Limits


@dataclass(frozen=True)
class Kernel:
    """The block of a matrix product that one fragment computes, and how a one-row product reads a weight.

    A fragment computes one texel, which has four values, in each of `tile_rows` x `tile_cols` tiles. 4 x 4 values fit
    four draw buffers; 4 x 8 and 8 x 4 need eight. In a one-row product, `contiguous` is the number of neighbouring
    texels that a fragment takes from each row of an f32 weight in panels (`ops.panels`). If `contiguous` is 0, weights
    have no panels, and a fragment takes two texels at a distance of half a row, or one texel of a wide row. The inner
    dimension of one-row products is split into slices. With `blends`, the device adds up the slices by blending
    (`ops.products`), which needs eight draw buffers; otherwise another pass adds up partial sums. With `pairs`, two
    pixels, one above the other, add up their slices before blending. Each reads the other's sums through `dFdy`, so the
    device must compute a separate derivative for each column of a quad (2 x 2 pixels).
    """

    tile_rows: int
    tile_cols: int
    contiguous: int = 0
    blends: bool = False
    pairs: bool = False

    @property
    def suits_software(self) -> bool:
        """True if the kernel is meant for software GL: contiguous columns are faster only there."""
        return self.contiguous > 0

    @property
    def name(self) -> str:
        """Returns the name used on the command line: the rows x columns that one fragment computes."""
        return f"{self.tile_rows}x{4 * self.tile_cols}"

    @property
    def unblended(self) -> Kernel:
        """Returns the kernel without blending; the probe measures kernels in this form."""
        return replace(self, blends=False, pairs=False)

    @property
    def label(self) -> str:
        """Returns the name and how one-row products are computed, such as `8x4-contiguous`, `4x8-blended` or `4x8`."""
        blended = "-paired" if self.pairs else "-blended" if self.blends else ""
        return self.name + ("-contiguous" if self.contiguous else blended)

    def for_format(self, fmt: Format, limits: Limits) -> Kernel:
        """Returns the kernel for products whose left factor is stored in `fmt`.

        A texel of a packed format holds values of several column tiles. For such a format, `tile_cols` is the number of
        these tiles, and `tile_rows` is 8 if the device has eight draw buffers, else 4.
        """
        if not fmt.packed:
            return self
        rows = 8 if limits.max_draw_buffers >= 8 else 4
        return replace(self, tile_rows=rows, tile_cols=fmt.column_tiles_per_texel)


KERNELS = {k.name: k for k in (Kernel(4, 1), Kernel(4, 2), Kernel(8, 1))}
