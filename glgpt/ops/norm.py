"""Layer normalisation of each row (Ba, Kiros and Hinton 2016): y = (x - mean) / sqrt(variance + eps) * gain + bias.

RMS norms (`rms_norm`) use the same shaders. A norm has moments: the mean and the sum of squared deviations of a row, or
of each slice of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from glgpt.ops.partial_sums import NormedRow, PartialSums, each_row
from glgpt.ops.pointwise import add_slices, slice_rows
from glgpt.program.layout import Layout, fold
from glgpt.program.recorder import Cost, Recorder
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor

Defines = dict[str, int | float | str]
FRAGMENTS = 2048  # with fewer rows, the moments of each row are computed in up to eight slices, to fill a GPU


def norm(rec: Recorder, x: Tensor, gain: Tensor, bias: Tensor, eps: float, out: Layout, name: str) -> Tensor:
    """Records the layer norm of every row of x `[T, C]` in the layout `out`; gain and bias are `[1, C]`."""
    return _norm(rec, x, gain, bias, eps, out, name)


def rms_norm(rec: Recorder, x: Tensor, gain: Tensor, eps: float, out: Layout, name: str, offset: float = 0.0) -> Tensor:
    """Records y = x / sqrt(mean square + eps) * (gain + offset) of every row (Zhang and Sennrich 2019)."""
    return _norm(rec, x, gain, None, eps, out, name, offset)


def _norm(
    rec: Recorder,
    x: Tensor,
    gain: Tensor,
    bias: Tensor | None,
    eps: float,
    out: Layout,
    name: str,
    offset: float = 0.0,
) -> Tensor:
    c4 = -(-x.cols // 4)
    slice_texels = -(-c4 // min(8, -(-FRAGMENTS // x.rows)))
    stats = rec.scratch(f"{name}.stats", Layout(x.rows, 4 * -(-c4 // slice_texels)))
    rec.emit("norm_stats", {"x": x}, {"y": stats}, {"SLICE": slice_texels, "C4": c4})
    kind: Defines = {"EPSILON": eps, **gain_offset(offset)}
    if bias is None:
        kind["RMS_NORM"] = 1
    y = rec.scratch(name, out)
    inputs = {"x": x, "stats": stats, "gain": gain} | ({"bias": bias} if bias else {})
    rec.emit("norm", inputs, {"y": y}, kind)

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        return _norm_vjp(rec, d[0], (x, gain, bias), stats, {"SLICE": slice_texels, "C4": c4} | kind, sums)

    rec.differentiable(y, (x, gain, bias), vjp)
    return y


def _norm_vjp(
    rec: Recorder,
    dy: Tensor,
    given: tuple[Tensor, Tensor, Tensor | None],
    stats: Tensor,
    defines: Defines,
    sums: Gradients,
) -> Gradients:
    x, gain, bias = given
    inputs = {"x": x, "dy": dy}
    back = rec.scratch(f"d.{x.name}.stats", stats.layout)
    rec.emit("norm_vjp_stats", inputs | {"gain": gain, "stats": stats}, {"y": back}, defines)
    inputs |= {"back": back}
    dx = rec.scratch(f"d.{x.name}", x.layout)
    rec.emit(
        "norm_vjp", inputs | {"gain": gain} | ({"plus": sums[0]} if sums[0] else {}), {"y": dx}, _offset_of(defines)
    )
    rows = slice_rows(x.rows)
    layout = Layout(-(-x.rows // rows), x.cols)
    learnt = [t for t in (gain, bias) if t]
    slices = [rec.scratch(f"d.{t.name}.slices", layout) for t in learnt]
    rec.emit("norm_vjp_sums", inputs, dict(zip("gb", slices, strict=False)), {"ROWS": rows})
    found = [add_slices(rec, p, f"d.{t.name}", s) for p, t, s in zip(slices, learnt, sums[1:], strict=False)]
    return [dx, *found] if bias else [dx, *found, None]


def gain_offset(offset: float) -> Defines:
    """Returns the define for a norm whose factor is gain + offset; no define if the offset is 0."""
    return {"GAIN_OFFSET": offset} if offset else {}


def _offset_of(defines: Defines) -> Defines:
    return {key: value for key, value in defines.items() if key == "GAIN_OFFSET"}


def row_sum(
    rec: Recorder,
    x: Tensor | None,
    gain: Tensor | None,
    eps: float,
    name: str,
    product: PartialSums | NormedRow | None = None,
    row: str | int | None = 0,
    offset: float = 0.0,
) -> NormedRow:
    """Records one row of x, and the values with which the next norm can be applied after a product (`NormedRow`).

    The factor of the norm is gain + offset. `row` is the row's number or the name of the scalar that holds it; None
    records every row. Without a gain, no norm follows, and only the row itself is recorded. A `product` is added to the
    row: partial sums with their bias, or a row that this op first normalises. Without x, `product` must be
    partial sums.
    """
    whole = x or product
    if not isinstance(whole, (Tensor, PartialSums)):
        raise ValueError(f"{name}: without x, product must be partial sums")
    rows, cols = whole.rows, whole.cols
    tiles = (1, min(3, (rec.limits.max_draw_buffers - 1) // 2, -(-cols // 4)))  # of y and of scaled; m takes one output
    n, number = (1, row) if row is not None else (rows, "int(gl_FragCoord.y)" if rows > 1 else 0)
    y, scaled = rec.scratch(name, Layout(n, cols, tiles)), rec.scratch(f"{name}.scaled", Layout(n, cols, tiles))
    moments = rec.scratch(f"{name}.moments", Layout(n, 4 * y.layout.width))
    inputs = ({"x": x} if x else {}) | ({"gain": gain} if gain else {})
    defines: Defines = {"ROW": number, **each_row(n), **gain_offset(offset)}
    if isinstance(product, PartialSums):
        inputs |= product.inputs
        defines |= product.at
    elif product:
        inputs |= {"branch": product.scaled, "moments": product.moments}
        defines |= {"WIDTH": product.x.cols, "EPSILON": product.eps}
    outputs = {"y": y} | ({"g": scaled, "m": moments} if gain else {})
    rec.emit("row_sum", inputs, outputs, defines)
    return NormedRow(y, scaled, moments, eps)


def norm_fold(
    rec: Recorder, gain: Tensor, bias: Tensor, w: Tensor, shift: Tensor | None, name: str
) -> tuple[Tensor, Tensor]:
    """Records and returns the states (gain w, bias w + shift), each `[1, N]`.

    These fold the gain and the bias of a norm into the next linear layer, whose weight is w and whose bias is `shift`.
    """
    folded = folded_norm(rec, name, w.cols)
    inputs = {"gain": gain, "bias": bias, "w": w} | ({"shift": shift} if shift else {})
    outputs = {"g": folded[0], "b": folded[1]}
    rec.emit("norm_fold", inputs, outputs, label=f"{name}.folded", columns=1, cost=Cost(4 * w.rows * w.cols))
    return folded


def folded_norm(rec: Recorder, name: str, cols: int) -> tuple[Tensor, Tensor]:
    """Returns the states that `norm_fold` writes for the linear layer `name`."""
    layout = fold(1, cols, rec.limits.max_texture_size)
    return rec.fixed(f"{name}.gain_w", layout, "state"), rec.fixed(f"{name}.bias_w", layout, "state")
