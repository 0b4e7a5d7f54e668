"""Records matrix products of x `[M, K]` and w `[K, N]`.

With many rows, each fragment computes a block of values in registers. With one row, K is split into slices; each
fragment computes partial sums over one slice, and the next op adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from glgpt.ops.partial_sums import AttendedRow, Defines, Hidden, Normed, PartialSums, Row, StreamMoments, each_row
from glgpt.ops.pointwise import (
    Activate,
    activation_defines,
    add,
    column_sums,
    copy,
    packed,
    packed_layout,
    plus,
    transpose,
)
from glgpt.program.formats import FORMATS
from glgpt.program.layout import Layout, fold, in_panels, one_layer, texels
from glgpt.program.recorder import Cost, Recorder, Window
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor

SLICE = 13  # texels of K per fragment of a one-row product; with a power of two, fetches would share few cache sets
# With contiguous columns: the number of texels that a fragment reads of a row of an f32 weight. Of a packed weight, a
# fragment always reads one texel, since decoding it needs registers.
CONTIGUOUS = 4
INTEGERS = 8, 2  # integer weights on a GPU: texels of K for each fragment, and how many of these it fetches at once
# Integer weights on a GPU: from this many texels of partial sums on, slices of K are twice as long; from twice as many
# on, they are four times as long.
MANY_SUMS = 60_000
# Integer weights on software GL: the start and the stores of a fragment take as long as this many texels of K.
PANEL_START = 10
PANEL = 8  # number of fragments that read a row of a panel: software GL runs this many together
WRITTEN_OUT = 8  # maximum number of segments of K (`Layout.segments`) to unroll if x is f32; a loop walks longer lists
MIN_SLICE_TEXELS = 24  # minimum texels of K in a slice: adding up shorter slices costs more than splitting K saves
MANY_COLUMNS = 1024  # columns of fragments that fill the bins of all threads of software GL
BIN = 64  # software GL hands out bins of 64 x 64 pixels to its threads
NARROW = 128  # a one-row product with fewer columns of fragments has up to 32 slices of K, to fill a GPU
WIDE = 4096  # a one-row product with weight rows of this many texels keeps a GPU busy with one texel per fragment
# A one-row product with at least twice this number of fragments has longer slices of K, so that fewer sums are added.
TARGET_FRAGMENTS = 16384


@dataclass(frozen=True)
class Splits:
    """The rule by which a device splits K into slices.

    The number of slices is doubled until a product has at least `enough` fragments. The maximum is `most` slices, or
    fewer if slices would be shorter than `MIN_SLICE_TEXELS` or their sums would not fit a texture. On software GL,
    fragments are counted in whole bins of `bin_size` x `bin_size`, since its threads process bins: two threads need as
    long for three bins as for four. On a GPU (`bin_size` 1), more slices also make fragments shorter. So the last
    fragments of a pass, which run when most of the GPU is idle, end sooner. Partial sums are f32; with `packed_sums`,
    the partial sums of a packed product are stored in the format of the product, so that half as many passes write
    them.
    """

    enough: int
    most: int
    bin_size: int = 1
    packed_sums: bool = False

    def of(self, rec: Recorder, rows: int, inner: int, width: int) -> int:
        """Returns the number of slices for a product of `rows` by `width` fragments that walk `inner` texels of K."""
        size, split_k = -(-width // self.bin_size) * -(-rows // self.bin_size), 1
        enough = self.enough // self.bin_size**2
        most = min(self.most, inner // MIN_SLICE_TEXELS, rec.limits.max_texture_size // width)
        while size * split_k < enough and 2 * split_k <= most:
            split_k *= 2
        return split_k


GPU_SPLITS = Splits(8192, 8)  # an H200 runs some 2,000 fragments at once
TRAINING_SPLITS = replace(GPU_SPLITS, packed_sums=True)
SOFTWARE_SPLITS = Splits(6 * BIN**2, 4, BIN)  # six bins are enough for two threads


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
    splits: Splits | None = None,
) -> Tensor:
    """Records y `[M, N]` = act(x `[M, K]` w `[K, N]` + bias `[1, N]`) + residual.

    y is stored as `dtype`. It has the row tiles of x. The number of its column tiles is a multiple of `tile_cols`, or
    depends on w if w is packed (`_column_tiles`). A fragment computes one texel of each row tile in one or two column
    tiles. If `splits` gives several slices of K, one pass multiplies the slices in parallel and another pass adds up
    their partial sums; the gradients are computed in the same way. `act` is an activation function; with it, the
    product has no gradient.

    If x is packed (a texel holds more than four values) and w is f32, w is packed for the product. Both gradients are
    then products of packed factors; the gradient of w is stored as f32, and the gradient of x in the format of x. A
    residual is f32 and has the row tiles of x; y then has the layout of the residual. If `dtype` is packed, the
    residual is added in the pass that adds up the partial sums, or in a separate pass if there are none. Raises
    ValueError for shapes that do not fit, and for x in panels.
    """
    tiles = x.layout.tiles[0], _column_tiles(rec, packed_layout(rec, w.layout, x.layout.dtype), tile_cols, dtype)
    whole = Layout(x.rows, w.cols, tiles, dtype)
    split_k = splits.of(rec, x.layout.height, texels(x.cols) // 4, whole.width) if splits else 1
    layout = residual.layout if residual and (split_k > 1 or whole.format.packed) else whole
    if w.rows < x.cols or x.layout.panel or (residual and not _fits(residual.layout, layout, whole)):
        raise ValueError(f"{name}: {x.layout} times {w.layout} plus {residual}")
    if residual and whole.format.packed and split_k == 1:
        product = matmul(rec, x, w, bias, f"{name}.product", act=act, dtype=dtype, tile_cols=tile_cols)
        return add(rec, residual, product, layout, name)
    weight, y = packed(rec, w, x.layout.dtype), rec.scratch(name, layout)
    finish = ({"bias": bias} if bias else {}) | ({"residual": residual} if residual else {})
    factors, split = {"x": x, "w": weight}, {"SPLIT_K": split_k}
    walk, cost = _segments(x.layout, weight.layout), Cost(2 * x.rows * x.cols * w.cols, weight.layout.nbytes)
    if split_k == 1:
        defines = split | walk | activation_defines(act)
        rec.emit("matmul", factors | finish, {"y": y}, defines, label=name, columns=2, cost=cost)
    else:
        stored = dtype if splits and splits.packed_sums else "f32"
        slices = replace(whole, cols=4 * whole.width * split_k * tiles[1], dtype=stored)
        sums, defines = rec.scratch(f"{name}.partial_sums", slices), split | walk | activation_defines(None)
        rec.emit("matmul", factors, {"y": sums}, defines, label=name, columns=2, cost=cost)
        rec.emit("matmul_sum", {"partial_sums": sums} | finish, {"y": y}, split | activation_defines(act))

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        if act:
            raise ValueError(f"{name}: a fused activation has no gradient; record the activation as a separate op")
        dy, given = d[0], packed(rec, d[0], x.layout.dtype, x.layout.tiles[0])
        return [
            _left_gradient(rec, given, x, w, sums[0], tile_cols, splits),
            _right_gradient(rec, given, rec.again(x), w, sums[1], tile_cols, splits),
            column_sums(rec, dy, f"d.{bias.name}", sums[2]) if bias else None,
            plus(rec, dy, sums[3]) if residual else None,
        ]

    rec.differentiable(y, (x, w, bias, residual), vjp)
    return y


def _fits(residual: Layout, y: Layout, product: Layout) -> bool:
    """True if a residual can be added to a product: it has the shape and row tiles of the product, and y's layout."""
    same = (residual.rows, residual.cols, residual.tiles[0]) == (product.rows, product.cols, product.tiles[0])
    return same and residual == y and not y.format.packed


def _left_gradient(
    rec: Recorder, dy: Tensor, x: Tensor, w: Tensor, so_far: Tensor | None, tile_cols: int, splits: Splits | None
) -> Tensor:
    """Records dx = dy w^T (+ so_far, the gradient of x so far)."""
    limit = rec.limits.max_texture_size
    tiles = -(-w.cols // (limit // 4 * 4))
    rows = tiles * texels(-(-w.cols // tiles))  # a multiple of 4 rows for each row tile
    layout = fold(rows, x.cols, limit, dtype=dy.layout.dtype)
    transposed = transpose(rec, w, layout, f"{w.name}.transposed")
    return _plus_product(rec, dy, transposed, so_far, f"d.{x.name}", tile_cols, splits, dy.layout.dtype)


def _right_gradient(
    rec: Recorder, dy: Tensor, x: Tensor, w: Tensor, so_far: Tensor | None, tile_cols: int, splits: Splits | None
) -> Tensor:
    """Records dw = x^T dy (+ so_far, the gradient of w so far).

    The inner dimension is the number of rows of x. If the height of the row tiles of dy is not a multiple of 4, dy is
    copied to a layout in which it is a multiple of 4, with padding after the last row.
    """
    if dy.layout.height % 4 and (dy.layout.tiles[0] > 1 or dy.rows % 4):
        limit, dtype = rec.limits.max_texture_size, dy.layout.dtype
        dy = copy(rec, dy, fold(texels(dy.rows), dy.cols, limit, dtype=dtype), dy.name)
    tile_rows = x.layout.tiles[0]
    if dy.layout.format.packed:  # both column tiles of a texel, and as many row tiles as eight draw buffers allow
        tile_rows, tile_cols = 4, dy.layout.format.column_tiles_per_texel
    elif tile_rows == 8 and tile_cols == 1 and w.rows <= 8 * BIN and dy.cols <= 4 * BIN:
        tile_rows, tile_cols = 4, 2  # a target twice as high, so that software GL's threads share it
    transposed = transpose(
        rec, x, Layout(w.rows, x.rows, (tile_rows, tile_cols), dy.layout.dtype), f"{x.name}.transposed"
    )
    return _plus_product(rec, transposed, dy, so_far, f"d.{w.name}", tile_cols, splits)


def _plus_product(
    rec: Recorder,
    a: Tensor,
    b: Tensor,
    so_far: Tensor | None,
    name: str,
    tile_cols: int,
    splits: Splits | None,
    dtype: str = "f32",
) -> Tensor:
    """Records a b + so_far, stored as `dtype`: one op if `so_far` has the layout of the product in f32, else two."""
    layout = Layout(a.rows, b.cols, (a.layout.tiles[0], _column_tiles(rec, b.layout, tile_cols, dtype)), dtype)
    fused = so_far if so_far and so_far.layout == layout and dtype == "f32" else None
    y = matmul(rec, a, b, None, name, residual=fused, dtype=dtype, tile_cols=tile_cols, splits=splits)
    return y if fused else plus(rec, y, so_far)


def _column_tiles(rec: Recorder, w: Layout, tile_cols: int, dtype: str) -> int:
    """Returns the number of column tiles of a product with w.

    If w is not packed, the number is a multiple of `tile_cols`, as small as the limit on texture sizes allows. If w is
    packed, the product has as many column tiles as w, or fewer if `dtype` has fewer column tiles per texel and a tile
    of the product can span several whole tiles of w. With fewer tiles, a pass has as many fragments as if w were stored
    as `dtype`.
    """
    tiles, fmt, own = w.tiles[1], w.format, FORMATS[dtype].column_tiles_per_texel
    if not fmt.packed:
        return fold(1, w.cols, rec.limits.max_texture_size, tile_cols).tiles[1]
    fewer = tiles // fmt.column_tiles_per_texel * own
    wide = -(-w.cols // (4 * fewer)) <= rec.limits.max_texture_size
    return fewer if own > 1 and w.cols % (4 * tiles) == 0 and wide else tiles


def _segments(x: Layout, w: Layout) -> dict[str, int | float | str]:
    """Returns the defines for walking K: an unrolled list of segments, ranges of K within one tile of x and of w.

    Returns no defines if x is f32 and the list is so long that it would take minutes to compile; the shader then uses a
    loop.
    """
    shared, calls = x.format.column_tiles_per_texel, []
    for layer, x0, starts, n in x.segments(w):
        at = [*starts, *[(-1, 0)] * (shared - len(starts))]
        meets = ", ".join(f"ivec2({tile}, {row})" for tile, row in at)
        calls.append(f"segment({layer}, {x0}, {n}, ivec2[{shared}]({meets}));")
    if len(calls) > WRITTEN_OUT and not x.format.packed:
        return {}
    each: dict[str, int | float | str] = {"UNROLL_TILES": 1} if _integers_on_a_gpu(w) else {}
    return each | {"SEGMENTS": " ".join(calls)}


def panels(rec: Recorder, rows: int, cols: int, dtype: str = "f32") -> Layout:
    """Returns the layout of a weight for software GL: panels as wide as `PANEL` fragments read, stacked in few layers.

    Software GL runs the fragments of 4 x 2 pixels together. If these fragments read a whole row of a panel, the next
    row follows it in memory, and the processor prefetches that row; the rows of a wide tile are too distant for that.
    Returns the layout of `fold` if panels do not fit the limits of a texture.
    """
    limit = rec.limits.max_texture_size
    whole = one_layer(rows, cols, dtype)
    if whole.stored_height <= limit:
        if whole.format.quantised:
            panel, exact = _panel_of_integers(whole.width), True
        else:
            panel, exact = PANEL * (1 if whole.format.packed else CONTIGUOUS), False
        layout = in_panels(rows, cols, limit, panel, dtype, exact)
        if layout.layers <= rec.limits.max_layers:
            return layout
    return fold(rows, cols, limit, dtype=dtype)


def _panel_of_integers(width: int) -> int:
    """Returns the width in texels of the panels of an integer weight: a row of a panel is one or two cache lines.

    Panels are narrow (one cache line) if the weight is narrow, or if padding would make it more than an eighth larger
    in wide panels than in narrow ones.
    """
    wide, narrow = (-(-width // panel) * panel for panel in (PANEL, PANEL // 2))
    return PANEL if width >= PANEL and 8 * wide <= 9 * narrow else PANEL // 2


def matvec(
    rec: Recorder, x: Row, w: Tensor, name: str, slice_texels: int | None = None, contiguous: int = 0
) -> PartialSums:
    """Records the product of one row, x `[1, K]` w `[K, N]`, as partial sums over slices of K.

    A target of one row would waste half of every quad (2 x 2 pixels) and leave a GPU mostly idle, so K is split into
    slices of `slice_texels` texels (None: chosen by `slices`). The op that reads the product adds up the partial sums.

    A fragment takes `contiguous` neighbouring texels of each row of w, which is faster on software GL. If `contiguous`
    is 0, the fragment takes two texels at a distance of half a row, or one texel of a wide row. Of a packed weight, it
    always takes one texel. If that texel has more column tiles than a pass can write, several fragments read the same
    texel, and each takes a part of its column tiles. Raises ValueError for a hidden layer, which only blended products
    can read.
    """
    if isinstance(x, Hidden):
        raise ValueError(f"{name}: only products that are added up by blending finish a hidden layer")
    return _matvecs(rec, x, [_Pixels.of(rec, x, w, slice_texels, contiguous)], [name])[0]


def matvecs(
    rec: Recorder, x: Tensor, weights: Sequence[Tensor], names: Sequence[str], contiguous: int = 0
) -> list[PartialSums]:
    """Records `matvec` of one row with each of several weights.

    Products with integer weights in panels are drawn next to each other in the same targets if their partial sums have
    the same height and number of layers, and fit into a texture together. Software GL then draws their passes together:
    a pass waits for the previous one only if the targets change.
    """
    found = [_Pixels.of(rec, x, w, None, contiguous) for w in weights]
    width = sum(p.across for p in found)
    same = len({(p.height, p.layers) for p in found}) == 1 and all(_integers_in_panels(p.w.layout) for p in found)
    whole = found[0].parts == 1 and found[0].layers <= rec.limits.max_draw_buffers
    if same and whole and width + BIN <= rec.limits.max_texture_size:
        return _matvecs(rec, x, found, names)
    return [_matvecs(rec, x, [p], [name])[0] for p, name in zip(found, names, strict=True)]


@dataclass(frozen=True)
class _Pixels:
    """The pixels of a product of one row and w: see `matvec`.

    There are `columns` fragments for each slice of K, in blocks that are `by` pixels high. Each fragment takes `texels`
    texels of a row of w. A slice has `slice_texels` of the `k4` texels of K.
    """

    w: Tensor
    contiguous: int
    texels: int
    columns: int
    by: int
    slice_texels: int
    k4: int
    parts: int  # number of fragments that share a texel of w

    @classmethod
    def of(
        cls, rec: Recorder, x: Tensor | AttendedRow, w: Tensor, slice_texels: int | None, contiguous: int
    ) -> _Pixels:
        """Returns the pixels of the product of x and w."""
        contiguous, texels, columns = columns_of(w, contiguous)
        k4 = -(-x.cols // 4)
        by, slice_texels = slices(rec, k4, columns, slice_texels, w.layout)
        shared, most = w.layout.format.column_tiles_per_texel, rec.limits.max_draw_buffers
        parts = shared // most if shared % most == 0 else 1
        if parts > 1:  # one pass is then enough, which takes less time than several
            columns *= parts
            by, _ = slices(rec, k4, columns, slice_texels, w.layout)
        return cls(w, contiguous, texels, columns, by, slice_texels, k4, parts)

    @property
    def across(self) -> int:
        """Returns the width in pixels."""
        return 4 * -(-self.columns // (4 * self.by))

    @property
    def split_k(self) -> int:
        """Returns the number of slices of K."""
        return -(-self.k4 // self.slice_texels)

    @property
    def height(self) -> int:
        """Returns the height in pixels."""
        return self.split_k * self.by

    @property
    def layers(self) -> int:
        """Returns the number of column tiles of the partial sums; each is a layer."""
        return self.texels * self.w.layout.format.column_tiles_per_texel // self.parts

    @property
    def place(self) -> Defines:
        """Returns the defines with which a shader finds the columns of a pixel."""
        return {"BY": self.by, "STRIDE": self.columns, "CONTIGUOUS": self.contiguous}

    @property
    def sums(self) -> Defines:
        """Returns the defines with which a shader finds the partial sums."""
        layout = self.w.layout
        shared = {"SHARED": layout.format.column_tiles_per_texel // self.parts, "TILE": layout.width * self.parts}
        return self.place | {"SPLIT_K": self.split_k} | shared

    @property
    def defines(self) -> Defines:
        """Returns the defines of `matvec.frag`."""
        layout = self.w.layout
        found = self.place | {"K4": self.k4, "SLICE": self.slice_texels}
        found |= {"PARTS": self.parts} if self.parts > 1 else {}
        found |= {"AT_ONCE": INTEGERS[1] if _integers_on_a_gpu(layout) else 1}
        whole = _integers_in_panels(layout) and _whole_groups(layout, self.k4, self.slice_texels)
        return found | ({"WHOLE_GROUPS": 1} if whole else {})


def _matvecs(
    rec: Recorder, x: Tensor | AttendedRow, pixels: Sequence[_Pixels], names: Sequence[str]
) -> list[PartialSums]:
    """Records products of one row next to each other in the same targets."""
    layers, width, start = pixels[0].layers, sum(p.across for p in pixels), 0
    if _integers_in_panels(pixels[0].w.layout) and pixels[0].height <= BIN:
        start = _first_column(width, rec.limits.max_texture_size)
    y = rec.scratch(", ".join(names), Layout(pixels[0].height, 4 * layers * (start + width), (1, layers)))
    given: dict[str, Tensor] = {"x": x.values, "logs": x.logs} if isinstance(x, AttendedRow) else {"x": x}
    found, first_like_it = [], 0
    for i, (p, name) in enumerate(zip(pixels, names, strict=True)):
        defines, layout = p.defines | (x.defines if isinstance(x, AttendedRow) else {}), p.w.layout
        if i == 0 or layout != pixels[i - 1].w.layout:
            first_like_it = start
        if first_like_it:
            defines["FIRST_COLUMN"] = first_like_it
        if sum(q.w.layout == layout for q in pixels) > 1:
            defines["ACROSS"] = p.across
        window = Window((start + p.across, p.height), first_column=start)
        cost = Cost(2 * x.cols * p.w.cols, layout.nbytes)
        rec.emit("matvec", given | {"w": p.w}, {"y": y}, defines, label=name, window=window, cost=cost)
        found.append(PartialSums(y, p.w.cols, p.sums, first=start or None))
        start += p.across
    return found


def columns_of(w: Tensor, contiguous: int) -> tuple[int, int, int]:
    """Returns (contiguous, texels of a row of w per fragment, number of columns of fragments) of a one-row product.

    The returned `contiguous` is 1 for a packed w, otherwise the argument.
    """
    shared = w.layout.format.column_tiles_per_texel
    across = w.layout.row_texels if shared > 1 else -(-w.cols // 4)
    if shared > 1:
        contiguous = 1
    texels = contiguous or (1 if across >= WIDE else 2)
    return contiguous, texels, -(-across // texels)


def _integers_on_a_gpu(w: Layout) -> bool:
    return w.format.quantised and not w.panel


def _integers_in_panels(w: Layout) -> bool:
    return w.format.quantised and w.panel > 0


def slices(rec: Recorder, k4: int, columns: int, slice_texels: int | None, w: Layout) -> tuple[int, int]:
    """Returns (height of a block of pixels, texels of K in a slice) for a one-row product.

    `columns` is the number of fragments per slice. If `slice_texels` is given, the slices have this length.
    """
    by, limit = 2, rec.limits.max_texture_size
    if _integers_in_panels(w):
        by, fastest = _panel_slices(k4, columns, w)
        while columns > limit * by:
            by *= 2
        return by, slice_texels or fastest
    least = INTEGERS[0] if _integers_on_a_gpu(w) else SLICE
    if slice_texels is None and w.stack > 1 and columns < MANY_COLUMNS:
        # Software GL draws bins of 64 x 64 pixels: the blocks of all slices together are up to two bins high, and a
        # slice is long enough to pay off.
        most = 2 * BIN // -(-k4 // (2 * SLICE))
        by = next((b for b in range(most // 2 * 2, 2, -2) if columns % (4 * b) == 0), 2)
        return by, -(-k4 // (2 * BIN // by))
    if slice_texels is None and _integers_on_a_gpu(w):
        sums = w.row_texels * w.format.column_tiles_per_texel * -(-k4 // least)
        slice_texels = least * (1 if sums < MANY_SUMS else 2 if sums < 2 * MANY_SUMS else 4)  # whole groups
    elif slice_texels is None and columns < NARROW:
        slice_texels = max(6, -(-k4 // 32))  # up to 32 slices, since the columns alone do not fill a GPU
    elif slice_texels is None:
        slice_texels = least * min(4, max(1, columns * -(-k4 // least) // TARGET_FRAGMENTS))
    split_k = -(-k4 // slice_texels)
    while columns > limit * by or (columns < 1024 and 2 * split_k * by <= min(200, limit) and by < 16):
        by *= 2  # fits the limit; makes small targets higher, since software GL hands out bins of 64 x 64 pixels
    return by, slice_texels


def _panel_slices(k4: int, columns: int, w: Layout) -> tuple[int, int]:
    """Returns (height of a block of pixels, texels of K in a slice) that take the least time on software GL.

    The estimate assumes that software GL runs 4 x 2 pixels together, in blocks of 4 x 4, and that two threads share the
    columns of blocks.
    """
    by, group, found = 1 if w.panel < PANEL else 2, w.format.group // 4, []
    across = -(-columns // (4 * by))  # columns of blocks
    for split_k in (1, 2, 4):
        slice_texels = -(-k4 // (split_k * group)) * group
        high = -(-(-(-k4 // slice_texels) * by) // 2)
        found.append((-(-across // 2) * high * (PANEL_START + slice_texels), -slice_texels))
    return by, -min(found)[1]


def _whole_groups(w: Layout, k4: int, slice_texels: int) -> bool:
    """True if K, each slice and each row tile of w consist of whole groups of rows."""
    group = w.format.group // 4
    return all(n % group == 0 for n in (k4, slice_texels, *([w.height // 4] if w.tiles[0] > 1 else [])))


def _first_column(width: int, limit: int) -> int:
    """Returns the pixel column at which to begin `width` columns.

    The middle of these columns is then at the edge of a bin, so that two threads share the columns evenly. Returns 0 if
    that does not help or does not fit `limit`.
    """
    first = -(width // 2) % BIN // 4 * 4
    return first if width < 4 * BIN and first + width <= limit else 0


def combine(
    rec: Recorder,
    x: PartialSums,
    name: str,
    *,
    act: Activate = None,
    normed: Normed | None = None,
    times: Tensor | PartialSums | None = None,
) -> Tensor:
    """Records y `[1, N]` = act(the sum of the partial sums x) * times `[1, N]`, or `[M, N]` for M rows.

    With `normed` = (row, folded norm), x is the product of a weight and (row * gain of the norm). The op applies the
    rest of the norm to the product, and then `act`. `times` is a tensor or another product of the same row. Raises
    ValueError if that product has another shape than x, or if it is given together with a folded norm.
    """
    least = 4 if normed and x.cols >= 64 else 1  # tiles: few fragments, since each has to add up the moments
    y = rec.scratch(name, replace(fold(1, x.cols, rec.limits.max_texture_size, least), rows=x.rows))
    inputs, defines = norm_inputs(normed)
    if isinstance(times, PartialSums):
        if times.defines != x.defines or "gain_w" in inputs:
            raise ValueError(f"{name}: both products must have the same shape and an RMS norm or none")
        inputs |= times.second
        defines |= times.second_at
    else:
        inputs |= {"times": times} if times else {}
    rec.emit("combine", x.inputs | inputs, {"y": y}, activation_defines(act) | x.at | defines | each_row(x.rows))
    return y


def norm_inputs(normed: Normed | None) -> tuple[dict[str, Tensor], dict[str, int | float | str]]:
    """Returns the inputs (tensors by sampler) and the defines of `folded_norm.glsl`; both are empty without a norm."""
    if normed is None:
        return {}, {}
    row, folded = normed
    defines: dict[str, int | float | str]
    if isinstance(row, StreamMoments):
        inputs, defines = {"moments": row.tensor}, {"WIDTH": row.width, "EPSILON": row.eps, "MOMENTS_FIRST": row.first}
    else:
        inputs, defines = {"moments": row.moments}, {"WIDTH": row.x.cols, "EPSILON": row.eps}
    if folded:
        inputs |= {"gain_w": folded[0], "bias_w": folded[1]}
    return inputs, defines
