"""Products of one row whose slices of K the device adds up by blending, in the order of the slices.

A pass per product is left of two, and a product can add to the residual stream in place. Products of one row are drawn
side by side, with the moments of the row for the norm that is applied to them afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glgpt.ops.matmul import INTEGERS, MANY_SUMS, TARGET_FRAGMENTS, WIDE, columns_of, norm_inputs
from glgpt.ops.partial_sums import AttendedRow, Defines, Hidden, PartialSums, Row, Stream, StreamMoments
from glgpt.ops.pointwise import activation_defines
from glgpt.program.layout import Layout
from glgpt.program.recorder import Cost, Recorder, Region
from glgpt.program.tensor import Tensor

# Height of a block of pixels, rows of blocks, and texels of K that a fragment fetches at once: with floats, and if a
# weight holds integers. Each row of blocks, a band, adds up some of the slices, and their readers add up the bands.
FLOATS, WITH_INTEGERS = (2, 1, 1), (1, 2, 2)
SLICE_TEXELS = 6  # texels of K in a slice of f32 or f16 weights
LENGTHS = (SLICE_TEXELS, 5, 7, 8, 4)  # the first of these that divides K is used instead, so that all slices are alike
WIDE_SLICES = 3  # slices of the product that makes logits
STREAM_UNIT = 32  # columns of a residual stream that every format's tiles divide evenly


def stream_tiles(weights: Sequence[Tensor]) -> int:
    """Returns the layers of a residual stream to which products with all of these weights can add.

    0 if there is no such number: a row must be divided into equal tiles.
    """
    if any(w.cols % STREAM_UNIT or w.layout.panel or (w.layout.groups > 1 and w.layout.format.packed) for w in weights):
        return 0
    packed = [w.layout.format.column_tiles_per_texel for w in weights if w.layout.format.packed]
    return min(packed, default=2)


def stream(rec: Recorder, x: Tensor, tiles: int, eps: float, rms: bool, offset: float, gain: Tensor | None) -> Stream:
    """Records the row x `[1, C]` as a residual stream with this many layers."""
    stride = x.cols // (4 * tiles)
    by, bands, _ = FLOATS if tiles == 2 else WITH_INTEGERS
    out = rec.scratch(f"{x.name}.stream", Layout(bands * by, 4 * tiles * _width(stride, by), (1, tiles)))
    rec.emit("to_stream", {"x": x}, {"y": out}, {"BY": by, "STRIDE": stride})
    return Stream(out, x.cols, by, bands, stride, eps, rms, offset, gain)


def from_stream(rec: Recorder, x: Stream, name: str) -> Tensor:
    """Records the residual stream as a row `[1, C]`."""
    y = rec.scratch(name, Layout(1, x.cols))
    rec.emit("from_stream", {"x": x.x}, {"y": y}, replace(x, gain=None).defines)
    return y


def products(rec: Recorder, x: Stream, weights: Sequence[Tensor], name: str) -> tuple[list[PartialSums], StreamMoments]:
    """Records the products of a row times its next norm's gain with several weights `[C, N]`, and the row's moments."""
    k4, regions, found, first, cost = x.cols // 4, [], [], 0, Cost()
    by, bands, at_once = _shape(weights)
    layers = max(_outputs(w) for w in weights)
    slices = max(-(-k4 // (bands * _slice(w, k4))) for w in weights)
    height = max(_height(rec, w, by) for w in weights)
    for w in weights:
        contiguous, _, columns = columns_of(w, 0)
        width = _width(columns, height)
        place: Defines = {"BY": height, "STRIDE": columns, "CONTIGUOUS": contiguous, "BANDS": bands}
        defines = place | {"K4": k4, "SLICE": _slice(w, k4), "AT_ONCE": at_once} | x.defines
        layout = Layout(bands * height, 4 * _outputs(w) * width, (1, _outputs(w)))
        regions.append(Region("matvec", x.inputs | {"w": w}, layout, defines))
        sums = place | {"SPLIT_K": bands, "SHARED": w.layout.format.column_tiles_per_texel, "TILE": w.layout.width}
        found.append((w.cols, sums, first))
        first += width
        cost = Cost(cost.flops + 2 * x.cols * w.cols, cost.nbytes + w.layout.nbytes)
    kind: Defines = {"K4": k4, "SLICE": -(-k4 // (slices * bands)), "BY": height, "BANDS": bands}
    kind |= replace(x, gain=None).defines
    kind |= {"RMS_NORM": 1} if x.rms else {}
    regions.append(Region("stream_moments", {"x": x.x}, Layout(bands * height, 16), kind))
    y = rec.scratch(name, Layout(bands * height, 4 * layers * (first + 4), (1, layers)))
    rec.add_up(regions, y, slices, name, onto=False, cost=cost)
    moments = StreamMoments(y, first, x.cols, x.eps)
    return [PartialSums(y, cols, defines, first=at) for cols, defines, at in found], moments


def add_product(rec: Recorder, y: Row, w: Tensor, bias: Tensor | None, x: Stream, name: str) -> None:
    """Adds the product of one row y `[1, K]` with w `[K, C]`, and a bias `[1, C]`, to the residual stream x."""
    k4, shared, layout = -(-y.cols // 4), w.layout.format.column_tiles_per_texel, x.x.layout
    tiles, (_, _, at_once) = layout.tiles[1], _shape([w])
    inputs, source = _row(y)
    defines: Defines = {"BY": x.by, "STRIDE": x.stride, "CONTIGUOUS": 0 if shared == 1 else 1, "BANDS": x.bands}
    defines |= {"K4": k4, "SLICE": _slice(w, k4), "AT_ONCE": at_once} | source
    defines |= {"PARTS": shared // tiles} if shared > tiles else {}
    inputs |= {"w": w} | ({"added": bias} if bias else {})
    cost, slices = Cost(2 * y.cols * w.cols, w.layout.nbytes), -(-k4 // (x.bands * _slice(w, k4)))
    rec.add_up([Region("matvec", inputs, layout, defines)], x.x, slices, name, onto=True, cost=cost)


def _row(y: Row) -> tuple[dict[str, Tensor], Defines]:
    """Returns the inputs and defines with which `matvec.frag` reads a row."""
    if isinstance(y, AttendedRow):
        return {"x": y.values, "logs": y.logs}, {"KEYS": y.keys}
    if not isinstance(y, Hidden):
        return {"x": y}, {}
    (inputs, defines), sums = norm_inputs(y.normed), y.sums
    if y.factor and y.factor.defines != sums.defines:
        raise ValueError("both products of a hidden layer must have the same shape and format")
    place = {f"SUMS_{key}": sums.defines[key] for key in ("BY", "STRIDE", "CONTIGUOUS", "SPLIT_K")}
    defines |= place | {key: sums.defines[key] for key in ("SHARED", "TILE")} | activation_defines(y.act)
    defines |= {"SUMS_FIRST": sums.first or 0} | ({"SECOND_FIRST": y.factor.first or 0} if y.factor else {})
    return sums.inputs | inputs | (y.factor.second if y.factor else {}), defines


def _shape(weights: Sequence[Tensor]) -> tuple[int, int, int]:
    return WITH_INTEGERS if any(w.layout.format.quantised for w in weights) else FLOATS


def _width(columns: int, height: int) -> int:
    """Returns the width in pixels of blocks of 4 x `height` columns."""
    return 4 * -(-columns // (4 * height))


def _height(rec: Recorder, w: Tensor, height: int) -> int:
    """Returns the height of blocks in which the columns of a weight fit a texture, with room for others next to it."""
    while 2 * columns_of(w, 0)[2] > rec.limits.max_texture_size * height:
        height *= 2
    return height


def _outputs(w: Tensor) -> int:
    """Returns the number of texels of a row that a fragment computes."""
    return columns_of(w, 0)[1] * w.layout.format.column_tiles_per_texel


def _slice(w: Tensor, k4: int) -> int:
    """Returns the texels of K in a slice: enough slices to fill a GPU, and whole groups of integers."""
    _, _, columns = columns_of(w, 0)
    if w.layout.format.quantised:
        least = INTEGERS[0]
        sums = columns * w.layout.format.column_tiles_per_texel * -(-k4 // least)
        return least * (1 if sums < MANY_SUMS else 2 if sums < 2 * MANY_SUMS else 4)
    if columns >= WIDE:
        return -(-k4 // WIDE_SLICES)
    length = next((n for n in LENGTHS if k4 % n == 0), LENGTHS[0])
    return length * min(4, max(1, columns * -(-k4 // length) // TARGET_FRAGMENTS))
