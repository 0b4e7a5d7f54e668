"""Products of a few rows: each texel of a weight is read once for all of them."""

from __future__ import annotations

from glgpt.ops.matmul import columns_of, slices
from glgpt.ops.partial_sums import PartialSums
from glgpt.program.layout import Layout
from glgpt.program.recorder import Cost, Recorder
from glgpt.program.tensor import Tensor

BY = 2  # rows of a block of pixels
MOST_ROWS = 8  # that one pass multiplies: as many as a fragment has outputs for


def few_rows(rec: Recorder, x: Tensor, w: Tensor, name: str, contiguous: int = 0) -> PartialSums:
    """A few rows times a matrix, x `[M, K]` w `[K, N]`, as partial sums over slices of K, as `matvec` has them.

    A row's sums are those of `matvec`, in the same order, so that they do not depend on how many rows there are.
    A fragment takes as many of the rows as it has outputs for, and then as many of the columns that it would take of
    one row. Raises ValueError for more than `MOST_ROWS` rows.
    """
    if not 1 <= x.rows <= MOST_ROWS:
        raise ValueError(f"{name}: a product of {x.rows} rows; few are 1 to {MOST_ROWS}")
    shared, k4, most = w.layout.format.column_tiles_per_texel, -(-x.cols // 4), rec.limits.max_draw_buffers
    contiguous, single, columns = columns_of(w, contiguous)
    _, slice_texels = slices(rec, k4, columns, None, w.layout)
    together = min(x.rows, max(1, most // shared))  # rows of a fragment
    groups = -(-x.rows // together)
    together = -(-x.rows // groups)
    texels = max((t for t in range(1, single + 1) if t * shared * together <= most), default=1)
    columns = -(-columns * single // texels)
    contiguous, split_k, by = texels if contiguous else 0, -(-k4 // slice_texels), BY
    while columns > rec.limits.max_texture_size * by:
        by *= 2
    place: dict[str, int | float | str] = {"BY": by, "STRIDE": columns, "CONTIGUOUS": contiguous, "SPLIT_K": split_k}
    place["ROW_GROUPS"] = groups
    tiles = (together, texels * shared)
    layout = Layout(together * groups * split_k * by, 16 * tiles[1] * -(-columns // (4 * by)), tiles)
    y = rec.scratch(name, layout)
    cost = Cost(2 * x.rows * x.cols * w.cols, w.layout.nbytes)
    rec.emit("few_rows", {"x": x, "w": w}, {"y": y}, place | {"K4": k4, "SLICE": slice_texels}, cost=cost)
    return PartialSums(y, w.cols, place | {"SHARED": shared, "TILE": w.layout.width}, x.rows)
