"""Records products of one row that are split into slices of the inner dimension K; blending adds up the slices.

The device adds the slices in their order, so that the sums are reproducible. A product takes one pass instead of two,
and its pass can add to the residual stream in place. Products of the same row are drawn side by side in one pass, next
to the moments of the row (sums of deviations and of their squares). The norm, which is applied to the products
afterwards, is computed from these moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glgpt.ops.matmul import INTEGERS, MANY_SUMS, TARGET_FRAGMENTS, WIDE, columns_of, norm_inputs
from glgpt.ops.partial_sums import AttendedRow, Defines, Hidden, PartialSums, Pixels, Row, Stream, StreamMoments
from glgpt.ops.pointwise import activation_defines
from glgpt.program.layout import Layout
from glgpt.program.recorder import Cost, Recorder, Region
from glgpt.program.tensor import Tensor

# The pixels (`partial_sums.Pixels`) of products: with float weights (FLOATS), with any integer weights (WITH_INTEGERS),
# and with any weights if pairs of pixels add up their sums before blending (PAIRS, see `pair.glsl`).
FLOATS, WITH_INTEGERS, PAIRS = Pixels(2, 1, False), Pixels(1, 2, False), Pixels(1, 2, True)
SLICE_TEXELS = 6  # texels of K in a slice of f32 or f16 weights
LENGTHS = (SLICE_TEXELS, 5, 7, 8, 4)  # lengths of a slice in texels of K; the first length that divides K is used
# For integer weights with pairs of pixels: slices of K are half as long if a product has fewer texels of partial sums
# than the first number, and twice as long if it has at least the second number.
MIN_SUMS, MIN_SUMS_OF_LONG_SLICES = 4_000, 250_000
WIDE_SLICES = 3  # number of slices of a product with `WIDE` or more columns of fragments; with two bands, it is 4
STREAM_UNIT = 32  # a residual stream has a multiple of this many columns, so that the tiles of all formats divide it


def stream_strides(weights: Sequence[Tensor]) -> int:
    """Returns into how many equal parts to divide a residual stream, so that products with these weights can add to it.

    A fragment computes one texel in each part. Returns 0 if the sizes or layouts of the weights do not allow such
    parts.
    """
    if any(w.cols % STREAM_UNIT or w.layout.panel or (w.layout.groups > 1 and w.layout.format.packed) for w in weights):
        return 0
    packed = [w.layout.format.column_tiles_per_texel for w in weights if w.layout.format.packed]
    return min(packed, default=2)


def stream(
    rec: Recorder,
    x: Tensor,
    strides: int,
    eps: float,
    rms: bool,
    offset: float,
    gain: Tensor | None,
    pairs: bool,
) -> Stream:
    """Records the row x `[1, C]` as a residual stream in `strides` parts.

    `pairs` is as in `Pixels`; the other arguments are as in `Stream`.
    """
    stride, pixels = x.cols // (4 * strides), PAIRS if pairs else FLOATS if strides == 2 else WITH_INTEGERS
    out = rec.scratch(f"{x.name}.stream", pixels.targets(_width(stride, pixels), strides))
    defines: Defines = {"BY": pixels.by, "STRIDE": stride, "STRIDES": strides}
    rec.emit("to_stream", {"x": x}, {"y": out}, defines | pixels.paired)
    return Stream(out, x.cols, pixels, strides, stride, eps, rms, offset, gain)


def from_stream(rec: Recorder, x: Stream, name: str) -> Tensor:
    """Records a copy of the residual stream x as a row `[1, C]`."""
    y = rec.scratch(name, Layout(1, x.cols))
    rec.emit("from_stream", {"x": x.x}, {"y": y}, replace(x, gain=None).defines)
    return y


def products(rec: Recorder, x: Stream, weights: Sequence[Tensor], name: str) -> tuple[list[PartialSums], StreamMoments]:
    """Records products with several weights `[C, N]`, and the moments of the residual stream x, in one pass.

    Each product is that of (x times the gain of the next norm) and a weight; the moments are those of x without the
    gain. Returns the partial sums of each product, and the moments.
    """
    k4, regions, found, first, cost = x.cols // 4, [], [], 0, Cost()
    pixels = _pixels(rec, x.pixels.pairs, weights)
    slices = max(-(-k4 // (pixels.bands * _slice(w, k4, pixels))) for w in weights)
    for w in weights:
        contiguous, _, columns = columns_of(w, 0)
        width = _width(columns, pixels)
        place: Defines = {"BY": pixels.by, "STRIDE": columns, "CONTIGUOUS": contiguous}
        defines = place | _walk(w, k4, pixels, weights) | x.defines
        regions.append(Region("matvec", x.inputs | {"w": w}, _region(pixels, width, _outputs(w)), defines))
        sums = place | {"SHARED": w.layout.format.column_tiles_per_texel, "TILE": w.layout.width} | pixels.paired
        found.append((w.cols, sums | {"SPLIT_K": pixels.sums}, first))
        first += width
        cost = Cost(cost.flops + 2 * x.cols * w.cols, cost.nbytes + w.layout.nbytes)
    kind: Defines = {"K4": k4, "SLICE": -(-k4 // (slices * pixels.bands)), **_band(pixels)}
    kind |= replace(x, gain=None).defines | ({"RMS_NORM": 1} if x.rms else {})
    regions.append(Region("stream_moments", {"x": x.x}, _region(pixels, 4, 1), kind))
    y = rec.scratch(name, pixels.targets(first + 4, max(_outputs(w) for w in weights)))
    rec.add_up(regions, y, slices, name, onto=False, pairs=pixels.pairs, cost=cost)
    moments = StreamMoments(y, first, x.cols, x.eps)
    return [PartialSums(y, cols, defines, first=at) for cols, defines, at in found], moments


def add_product(rec: Recorder, y: Row, w: Tensor, bias: Tensor | None, x: Stream, name: str) -> None:
    """Records x += y w + bias for the residual stream x, one row y `[1, K]`, w `[K, C]` and bias `[1, C]`."""
    k4, shared, pixels = -(-y.cols // 4), w.layout.format.column_tiles_per_texel, x.pixels
    inputs, source = _row(y)
    defines: Defines = {"BY": pixels.by, "STRIDE": x.stride, "CONTIGUOUS": 0 if shared == 1 else 1}
    defines |= _walk(w, k4, pixels, [w]) | source
    defines |= {"PARTS": shared // x.strides} if shared > x.strides else {}
    inputs |= {"w": w} | ({"added": bias} if bias else {})
    cost, slices = Cost(2 * y.cols * w.cols, w.layout.nbytes), -(-k4 // (pixels.bands * _slice(w, k4, pixels)))
    region = Region("matvec", inputs, _region(pixels, _width(x.stride, pixels), x.strides), defines)
    rec.add_up([region], x.x, slices, name, onto=True, pairs=pixels.pairs, cost=cost)


def _row(y: Row) -> tuple[dict[str, Tensor], Defines]:
    """Returns the inputs (tensors by sampler) and the defines with which `matvec.frag` reads a row."""
    if isinstance(y, AttendedRow):
        return {"x": y.values, "logs": y.logs}, dict(y.defines)
    if not isinstance(y, Hidden):
        return {"x": y}, {}
    (inputs, defines), sums = norm_inputs(y.normed), y.sums
    if y.factor and y.factor.defines != sums.defines:
        raise ValueError("both products of a hidden layer must have the same shape and format")
    place = {f"SUMS_{key}": sums.defines[key] for key in ("BY", "STRIDE", "CONTIGUOUS", "SPLIT_K")}
    shape = {key: sums.defines[key] for key in ("SHARED", "TILE", "PAIRS") if key in sums.defines}
    defines |= place | shape | activation_defines(y.act)
    defines |= {"SUMS_FIRST": sums.first or 0} | ({"SECOND_FIRST": y.factor.first or 0} if y.factor else {})
    return sums.inputs | inputs | (y.factor.second if y.factor else {}), defines


def _pixels(rec: Recorder, pairs: bool, weights: Sequence[Tensor]) -> Pixels:
    """Returns the pixels of products with these weights.

    Blocks are high enough for the widest product to take at most half of the maximum width of a texture, since other
    products are drawn next to it.
    """
    integers = any(w.layout.format.quantised for w in weights)
    pixels = PAIRS if pairs else WITH_INTEGERS if integers else FLOATS
    by, columns = pixels.by, max(columns_of(w, 0)[2] for w in weights)
    while 2 * columns > rec.limits.max_texture_size * by:
        by *= 2
    return replace(pixels, by=by)


def _region(pixels: Pixels, width: int, values: int) -> Layout:
    """Returns the layout of a shader's output: `width` columns of pixels or pixel pairs, each with `values` texels."""
    return Layout(pixels.sums * pixels.by, 4 * values * width, (1, values))


def _walk(w: Tensor, k4: int, pixels: Pixels, weights: Sequence[Tensor]) -> Defines:
    """Returns the defines with which a pixel finds its texels of K, for the product with w.

    `weights` are those of all products of the pass.
    """
    slice_texels = _slice(w, k4, pixels)
    defines: Defines = {"K4": k4, "SLICE": slice_texels, **_band(pixels)}
    integers = any(v.layout.format.quantised for v in weights)
    defines["AT_ONCE"] = INTEGERS[1] if (w.layout.format.quantised if pixels.pairs else integers) else 1
    if pixels.pairs and not w.layout.format.quantised and k4 % (pixels.bands * slice_texels) == 0:
        defines["INTERLEAVED"] = 1  # faster for weights without scales
    return defines


def _band(pixels: Pixels) -> Defines:
    """Returns the defines for the number of bands and for the index of a pixel's band."""
    return {"BANDS": pixels.bands, "BAND": f"(int(gl_FragCoord.y) {'& 1' if pixels.pairs else f'/ {pixels.by}'})"}


def _width(columns: int, pixels: Pixels) -> int:
    """Returns the width in pixels of a product with `columns` columns of fragments, in blocks of 4 x `pixels.by`."""
    return 4 * -(-columns // (4 * pixels.by))


def _outputs(w: Tensor) -> int:
    """Returns how many texels of the product with w a fragment computes."""
    return columns_of(w, 0)[1] * w.layout.format.column_tiles_per_texel


def _slice(w: Tensor, k4: int, pixels: Pixels) -> int:
    """Returns the number of texels of K in a slice, chosen so that the slices fill a GPU.

    For integer weights, a slice is half a group of rows or a number of whole groups.
    """
    _, _, columns = columns_of(w, 0)
    if w.layout.format.quantised:
        least = INTEGERS[0]
        sums = columns * w.layout.format.column_tiles_per_texel * -(-k4 // least)
        if pixels.pairs:
            return least // 2 if sums < MIN_SUMS else least if sums < MIN_SUMS_OF_LONG_SLICES else 2 * least
        return least * (1 if sums < MANY_SUMS else 2 if sums < 2 * MANY_SUMS else 4)
    if columns >= WIDE:
        return -(-k4 // (WIDE_SLICES + WIDE_SLICES % pixels.bands))
    length = next((n for n in LENGTHS if k4 % n == 0), LENGTHS[0])
    return length * min(4, max(1, columns * -(-k4 // length) // TARGET_FRAGMENTS))
