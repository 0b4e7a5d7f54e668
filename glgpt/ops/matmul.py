"""Products: register-blocked for many rows, split over the inner dimension for one."""

from __future__ import annotations

from collections.abc import Sequence

from glgpt.ops.partial_sums import AttendedRow, Normed, PartialSums, Row
from glgpt.ops.pointwise import activation_defines, column_sums, copy, plus, transpose
from glgpt.program.layout import Layout, fold, stacked, texels
from glgpt.program.recorder import Recorder
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor

PART = 13  # texels of the inner dimension a fragment walks; off the powers of two, which meet in the same cache sets
PANEL = 32  # texels of a panel's row: eight fragments, which software GL runs together, take four each
WRITTEN_OUT = 8  # runs of the inner dimension within one tile of each factor, before a product loops over them
FEW_BINS = 6  # of BIN x BIN fragments of a product; with fewer, K is cut: six suit two threads, and fill an H200's half
MOST_PARTS, LEAST_PART = 4, 24  # of K, and texels in each: shorter ones save less than the pass that adds them up
BIN = 64  # pixels of a side of what software GL hands out to a thread
NARROW = 128  # fragments across a one-row product, below which it is cut finer
WIDE = 4096  # texels of columns of a one-row product: so many give a GPU enough fragments with one column each
ENOUGH = 16384  # fragments of a one-row product; with more, each walks further and the reader adds up fewer parts


def matmul(
    rec: Recorder,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    name: str,
    *,
    act: str | None = None,
    residual: Tensor | None = None,
    dtype: str = "f32",
    tile_cols: int = 1,
    parts: int = 1,
) -> Tensor:
    """y `[M, N]` = act(x `[M, K]` w `[K, N]` + bias `[1, N]`) + residual, f32 of y's own layout.

    y takes its row tiles from x and is cut into `tile_cols` (packed weights: into their own column tiles). A fragment
    computes a texel of each row tile in one or two column tiles. K is cut into this many `parts`, which are worked on
    side by side and added up by another pass (see `parts_for`).
    """
    y = rec.scratch(name, Layout(x.rows, w.cols, (x.layout.tiles[0], _column_tiles(rec, w, tile_cols)), dtype))
    if w.rows < x.cols or x.layout.stack > 1 or (residual and (residual.layout != y.layout or dtype == "f16")):
        raise ValueError(f"{name}: {x.layout} times {w.layout} plus {residual}")
    inputs, product = {"x": x, "w": w}, y
    finish = ({"bias": bias} if bias else {}) | ({"residual": residual} if residual else {})
    shape: dict[str, int | float | str] = {"PARTS": parts}
    defines = shape | _segments(x.layout, w.layout)
    if parts > 1:
        cols = 4 * y.layout.width * parts * y.layout.tiles[1]
        product = rec.scratch(f"{name}.parts", Layout(x.rows, cols, y.layout.tiles))
        defines |= activation_defines(None)
    else:
        inputs |= finish
        defines |= activation_defines(act)
    flops = 2 * x.rows * x.cols * w.cols
    rec.emit("matmul", inputs, {"y": product}, defines, label=name, columns=2, flops=flops, nbytes=w.layout.nbytes)
    if parts > 1:
        rec.emit("matmul_sum", {"part": product} | finish, {"y": y}, shape | activation_defines(act))

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        if act:
            raise ValueError(f"{name}: record the activation as an op of its own to differentiate it")
        dy, biased, added = d[0], sums[2], sums[3]
        return [
            _left_gradient(rec, dy, x, w, sums[0], tile_cols),
            _right_gradient(rec, dy, x, w, sums[1], tile_cols),
            column_sums(rec, dy, f"d.{bias.name}", biased) if bias else None,
            plus(rec, dy, added) if residual else None,
        ]

    rec.differentiable(y, (x, w, bias, residual), vjp)
    return y


def parts_for(rec: Recorder, rows: int, inner: int, width: int) -> int:
    """Into how many parts a product of `width` texels by `rows` of fragments had better cut its `inner` texels.

    Software GL hands out bins of 64 x 64 fragments, and a GPU has room for thousands: three bins are two turns of two
    threads, and 1,536 fragments a fifth of an H200.
    """
    bins, parts = -(-width // BIN) * -(-rows // BIN), 1
    while bins * parts < FEW_BINS and 2 * parts <= MOST_PARTS and inner >= 2 * parts * LEAST_PART:
        parts *= 2
    return parts if width * parts <= rec.limits.max_texture_size else 1


def _left_gradient(rec: Recorder, dy: Tensor, x: Tensor, w: Tensor, so_far: Tensor | None, tile_cols: int) -> Tensor:
    """dx = dy w^T (+ so_far)."""
    limit = rec.limits.max_texture_size
    tiles = -(-w.cols // (limit // 4 * 4))
    layout = fold(tiles * texels(-(-w.cols // tiles)), x.cols, limit)  # rows padded, so that no more tiles are needed
    turned = transpose(rec, w, layout, f"{w.name}.transposed")
    return _plus_product(rec, dy, turned, so_far, f"d.{x.name}", tile_cols)


def _right_gradient(rec: Recorder, dy: Tensor, x: Tensor, w: Tensor, so_far: Tensor | None, tile_cols: int) -> Tensor:
    """dw = x^T dy (+ so_far): the inner dimension is that of the rows, which may be no multiple of four."""
    if dy.layout.height % 4 and (dy.layout.tiles[0] > 1 or dy.rows % 4):
        dy = copy(rec, dy, fold(texels(dy.rows), dy.cols, rec.limits.max_texture_size), dy.name)
    tile_rows = x.layout.tiles[0]
    if tile_rows == 8 and tile_cols == 1 and w.rows <= 8 * BIN and dy.cols <= 4 * BIN:
        tile_rows, tile_cols = 4, 2  # twice as high a target, so that software GL's threads share it
    turned = transpose(rec, x, Layout(w.rows, x.rows, (tile_rows, tile_cols)), f"{x.name}.transposed")
    return _plus_product(rec, turned, dy, so_far, f"d.{w.name}", tile_cols)


def _plus_product(rec: Recorder, a: Tensor, b: Tensor, so_far: Tensor | None, name: str, tile_cols: int) -> Tensor:
    """a b + so_far, in one go where their layouts are the same."""
    layout = Layout(a.rows, b.cols, (a.layout.tiles[0], _column_tiles(rec, b, tile_cols)))
    fused = so_far if so_far and so_far.layout == layout else None
    y = matmul(rec, a, b, None, name, residual=fused, tile_cols=tile_cols)
    return y if fused else plus(rec, y, so_far)


def _column_tiles(rec: Recorder, w: Tensor, tile_cols: int) -> int:
    """Into how many column tiles a product with w is cut: packed weights keep their own, others fit the limit."""
    if w.layout.pairs == 2:
        return w.layout.tiles[1]
    return fold(1, w.cols, rec.limits.max_texture_size, tile_cols).tiles[1]


def _segments(x: Layout, w: Layout) -> dict[str, str]:
    """How the shader walks the inner dimension: written out, or, where a compiler takes minutes for that, in a loop."""
    calls = []
    for layer, x0, starts, n in x.segments(w):
        (t0, w0), (t1, w1) = starts[0], starts[1] if len(starts) > 1 else (-1, 0)
        calls.append(f"segment({layer}, {x0}, {n}, {t0}, {w0}, {t1}, {w1});")
    return {"SEGMENTS": " ".join(calls)} if len(calls) <= WRITTEN_OUT or x.pairs == 2 else {}


def panels(rec: Recorder, rows: int, cols: int) -> Layout:
    """The layout of a weight that software GL reads: column tiles of `PANEL` texels, stacked in few layers.

    Software GL runs the fragments of 4 x 2 pixels together. Where those read a tile's row whole, the next row follows
    it in memory, and a processor fetches ahead; rows of a wide tile are too far apart for that.
    """
    limit = rec.limits.max_texture_size
    if rows <= limit:
        layout = stacked(rows, cols, limit, PANEL)
        if layout.layers <= rec.limits.max_layers:
            return layout
    return fold(rows, cols, limit)


def matvec(rec: Recorder, x: Row, w: Tensor, name: str, part: int | None = None, near: int = 0) -> PartialSums:
    """One row times a matrix, x `[1, K]` w `[K, N]`, as partial sums over `part` texels of K each (None: enough).

    A target of one row wastes half of every quad and gives a GPU too little to do; the consumer adds the parts up.
    A fragment takes `near` neighbouring texels of columns (better on software GL), or two that lie half the row apart
    (one of a wide row).
    """
    k4, n4 = -(-x.cols // 4), -(-w.cols // 4)
    if w.layout.pairs == 2:  # one fetch of packed weights serves both column tiles
        near, apart = 0, w.layout.width
        columns = apart * w.layout.tiles[1] // 2
        ways = 2
    else:
        ways = near or (1 if n4 >= WIDE else 2)
        columns = apart = -(-n4 // ways)
    by, limit = 2, rec.limits.max_texture_size  # rows of a block of pixels
    if part is None and w.layout.stack > 1 and columns < 1024:
        # Software GL draws bins of 64 x 64 pixels: two of them, no block in part, and not more of K than pays
        most = 2 * BIN // -(-k4 // (2 * PART))
        by = next((b for b in range(most // 2 * 2, 2, -2) if columns % (4 * b) == 0), 2)
        part = -(-k4 // (2 * BIN // by))
        parts = -(-k4 // part)
    else:
        if part is None and columns < NARROW:
            part = max(6, -(-k4 // 32))  # the columns alone do not fill a GPU
        elif part is None:
            part = PART * min(4, max(1, columns * -(-k4 // PART) // ENOUGH))
        parts = -(-k4 // part)
        while columns > limit * by or (columns < 1024 and 2 * parts * by <= min(200, limit) and by < 16):
            by *= 2  # to fit, and since software GL hands out bins of 64 x 64: a small target had better be a high one
    y = rec.scratch(name, Layout(parts * by, 16 * ways * -(-columns // (4 * by)), (1, ways)))
    place: dict[str, int | float | str] = {"BY": by, "APART": apart, "NEAR": near}
    flops = 2 * x.cols * w.cols
    defines = place | {"K4": k4, "PART": part}
    if isinstance(x, AttendedRow):
        inputs, defines = {"x": x.values, "logs": x.logs, "w": w}, defines | {"KEYS": x.keys}
    else:
        inputs = {"x": x, "w": w}
    rec.emit("matvec", inputs, {"y": y}, defines, flops=flops, nbytes=w.layout.nbytes)
    return PartialSums(y, w.cols, place | {"PARTS": parts})


def combine(
    rec: Recorder,
    x: PartialSums,
    name: str,
    *,
    act: str | None = None,
    normed: Normed | None = None,
    times: Tensor | None = None,
) -> Tensor:
    """y `[1, N]` = act(the sum of the partial sums x) * times `[1, N]`.

    With `normed` = (the row, its folded norm), the sum is the product of `row.scaled` and becomes that of its norm.
    """
    least = 4 if normed and x.cols >= 64 else 1  # few fragments: each takes the row's moments for itself
    y = rec.scratch(name, fold(1, x.cols, rec.limits.max_texture_size, least))
    inputs, defines = norm_inputs(normed)
    inputs |= {"times": times} if times else {}
    rec.emit("combine", x.inputs | inputs, {"y": y}, activation_defines(act) | x.defines | defines)
    return y


def norm_inputs(normed: Normed | None) -> tuple[dict[str, Tensor], dict[str, int | float | str]]:
    """Inputs and defines of `folded_norm.glsl`; none where there is no norm to apply."""
    if normed is None:
        return {}, {}
    row, folded = normed
    inputs = {"moments": row.moments}
    if folded:
        inputs |= {"gain_w": folded[0], "bias_w": folded[1]}
    return inputs, {"WIDTH": row.x.cols, "EPSILON": row.eps}
