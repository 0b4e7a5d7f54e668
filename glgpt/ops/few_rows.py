"""Multiplies a few rows by a weight: a fragment reads each texel of the weight once for several rows."""

from __future__ import annotations

from glgpt.ops.matmul import columns_of, slices
from glgpt.ops.partial_sums import PartialSums
from glgpt.program.layout import Layout
from glgpt.program.recorder import Cost, Recorder
from glgpt.program.tensor import Tensor

BY = 2  # minimum height of a block of pixels (`matvec.frag`)
MAX_ROWS = 8  # maximum number of rows of a product: a fragment has up to eight outputs


def few_rows(rec: Recorder, x: Tensor, w: Tensor, name: str, contiguous: int = 0) -> PartialSums:
    """Records the product of x `[M, K]`, which has a few rows, and w `[K, N]` as partial sums over slices of K.

    The sums of a row are added in the same order as in `matvec`, so the result for a row does not depend on the number
    of rows. The rows are divided into equal groups, and a fragment computes one group. A group is as large as the
    number of a fragment's outputs allows. If outputs remain, the fragment computes more columns, but at most as many as
    in `matvec`. `contiguous` is as in `matvec`. Raises ValueError for more than `MAX_ROWS` rows.
    """
    if not 1 <= x.rows <= MAX_ROWS:
        raise ValueError(f"{name}: a product of {x.rows} rows; few_rows takes 1 to {MAX_ROWS}")
    shared, k4, most = w.layout.format.column_tiles_per_texel, -(-x.cols // 4), rec.limits.max_draw_buffers
    contiguous, single, columns = columns_of(w, contiguous)
    _, slice_texels = slices(rec, k4, columns, None, w.layout)
    together = min(x.rows, max(1, most // shared))  # number of rows that a fragment takes
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
