"""Layer normalisation (Ba, Kiros and Hinton 2016): y = (x - mean) / sqrt(variance + eps) * gain + bias of each row."""

from __future__ import annotations

from collections.abc import Sequence

from glgpt.ops.partial_sums import NormedRow, PartialSums, each_row
from glgpt.ops.pointwise import add_slices, slice_rows
from glgpt.program.layout import Layout, fold
from glgpt.program.recorder import Cost, Recorder
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor

Defines = dict[str, int | float | str]
FRAGMENTS = 2048  # with fewer rows, the moments of a row are computed in up to eight slices, to fill a GPU


def norm(rec: Recorder, x: Tensor, gain: Tensor, bias: Tensor, eps: float, out: Layout, name: str) -> Tensor:
    """Records the layer norm of every row of x `[T, C]`; gain and bias are `[1, C]`."""
    return _norm(rec, x, gain, bias, eps, out, name)


def rms_norm(rec: Recorder, x: Tensor, gain: Tensor, eps: float, out: Layout, name: str) -> Tensor:
    """Records y = x / sqrt(mean square + eps) * gain of every row (Zhang and Sennrich 2019)."""
    return _norm(rec, x, gain, None, eps, out, name)


def _norm(rec: Recorder, x: Tensor, gain: Tensor, bias: Tensor | None, eps: float, out: Layout, name: str) -> Tensor:
    c4 = -(-x.cols // 4)
    slice_texels = -(-c4 // min(8, -(-FRAGMENTS // x.rows)))
    stats = rec.scratch(f"{name}.stats", Layout(x.rows, 4 * -(-c4 // slice_texels)))
    rec.emit("norm_stats", {"x": x}, {"y": stats}, {"SLICE": slice_texels, "C4": c4})
    kind: Defines = {"EPSILON": eps}
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
    rec.emit("norm_vjp", inputs | {"gain": gain} | ({"plus": sums[0]} if sums[0] else {}), {"y": dx})
    rows = slice_rows(x.rows)
    layout = Layout(-(-x.rows // rows), x.cols)
    learnt = [t for t in (gain, bias) if t]
    slices = [rec.scratch(f"d.{t.name}.slices", layout) for t in learnt]
    rec.emit("norm_vjp_sums", inputs, dict(zip("gb", slices, strict=False)), {"ROWS": rows})
    found = [add_slices(rec, p, f"d.{t.name}", s) for p, t, s in zip(slices, learnt, sums[1:], strict=False)]
    return [dx, *found] if bias else [dx, *found, None]


def row_sum(
    rec: Recorder,
    x: Tensor,
    gain: Tensor | None,
    eps: float,
    name: str,
    product: PartialSums | None = None,
    shift: Tensor | None = None,
    row: str | int | None = 0,
) -> NormedRow:
    """Records one row of x, prepared for a norm with this gain that is applied after the next product.

    `row` is the row's number or the scalar that holds it; None records every row. Without a gain, no norm follows, and
    only the row itself is recorded. The partial sums of a `product` and its bias `shift` `[1, C]` are added to the row
    if they are given.
    """
    tiles = (1, min(3, (rec.limits.max_draw_buffers - 1) // 2, -(-x.cols // 4)))  # of y and scaled; moments need one
    n, number = (1, row) if row is not None else (x.rows, "int(gl_FragCoord.y)" if x.rows > 1 else 0)
    y, scaled = rec.scratch(name, Layout(n, x.cols, tiles)), rec.scratch(f"{name}.scaled", Layout(n, x.cols, tiles))
    moments = rec.scratch(f"{name}.moments", Layout(n, 4 * y.layout.width))
    inputs = {"x": x} | ({"gain": gain} if gain else {})
    defines: Defines = {"ROW": number, **each_row(n)}
    if product:
        inputs |= product.inputs | ({"shift": shift} if shift else {})
        defines |= product.defines
    outputs = {"y": y} | ({"g": scaled, "m": moments} if gain else {})
    rec.emit("row_sum", inputs, outputs, defines)
    return NormedRow(y, scaled, moments, eps)


def norm_fold(
    rec: Recorder, gain: Tensor, bias: Tensor, w: Tensor, shift: Tensor | None, name: str
) -> tuple[Tensor, Tensor]:
    """Records the states (gain w, bias w + shift), each `[1, N]`: a norm's gain and bias folded into a linear layer.

    The linear layer is (w, shift).
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
