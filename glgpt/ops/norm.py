"""Layer normalisation (Ba, Kiros and Hinton 2016): y = (x - mean) / sqrt(variance + eps) * gain + bias, by row."""

from __future__ import annotations

from collections.abc import Sequence

from glgpt.ops.partial_sums import NormedRow, PartialSums
from glgpt.ops.pointwise import part_rows, sum_parts
from glgpt.program.layout import Layout, fold
from glgpt.program.recorder import Recorder
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor

FRAGMENTS = 2048  # few rows are cut into up to eight parts to take their moments, so that they still fill a GPU


def norm(rec: Recorder, x: Tensor, gain: Tensor, bias: Tensor, eps: float, out: Layout, name: str) -> Tensor:
    """The norm of every row of x `[T, C]`; gain and bias are `[1, C]`."""
    c4 = -(-x.cols // 4)
    part = -(-c4 // min(8, -(-FRAGMENTS // x.rows)))
    stats = rec.scratch(f"{name}.stats", Layout(x.rows, 4 * -(-c4 // part)))
    rec.emit("norm_stats", {"x": x}, {"y": stats}, {"PART": part, "C4": c4})
    y = rec.scratch(name, out)
    rec.emit("norm", {"x": x, "stats": stats, "gain": gain, "bias": bias}, {"y": y}, {"EPSILON": eps})

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        return _norm_vjp(rec, d, x, gain, bias, stats, {"PART": part, "C4": c4, "EPSILON": eps}, sums)

    rec.differentiable(y, (x, gain, bias), vjp)
    return y


def _norm_vjp(
    rec: Recorder,
    d: Sequence[Tensor],
    x: Tensor,
    gain: Tensor,
    bias: Tensor,
    stats: Tensor,
    defines: dict[str, int | float | str],
    sums: Gradients,
) -> Gradients:
    inputs = {"x": x, "dy": d[0]}
    back = rec.scratch(f"d.{x.name}.stats", stats.layout)
    rec.emit("norm_vjp_stats", inputs | {"gain": gain, "stats": stats}, {"y": back}, defines)
    inputs |= {"back": back}
    dx = rec.scratch(f"d.{x.name}", x.layout)
    rec.emit("norm_vjp", inputs | {"gain": gain} | ({"plus": sums[0]} if sums[0] else {}), {"y": dx})
    rows = part_rows(x.rows)
    layout = Layout(-(-x.rows // rows), x.cols)
    parts = [rec.scratch(f"d.{t.name}.parts", layout) for t in (gain, bias)]
    rec.emit("norm_vjp_sums", inputs, dict(zip("gb", parts, strict=True)), {"ROWS": rows})
    return [
        dx,
        sum_parts(rec, parts[0], f"d.{gain.name}", sums[1]),
        sum_parts(rec, parts[1], f"d.{bias.name}", sums[2]),
    ]


def row_sum(
    rec: Recorder,
    x: Tensor,
    gain: Tensor,
    eps: float,
    name: str,
    product: PartialSums | None = None,
    shift: Tensor | None = None,
    row: str | int = 0,
) -> NormedRow:
    """One row of x, ready for the norm of this gain: `row` is its number, or the scalar that holds it.

    The partial sums of a product and its bias `[1, C]` are added to it, where given.
    """
    tiles = (1, 2 if x.cols > 4 and rec.limits.max_draw_buffers >= 5 else 1)
    y, scaled = rec.scratch(name, Layout(1, x.cols, tiles)), rec.scratch(f"{name}.scaled", Layout(1, x.cols, tiles))
    moments = rec.scratch(f"{name}.moments", Layout(1, 4 * y.layout.width))
    inputs = {"x": x, "gain": gain}
    defines: dict[str, int | float | str] = {"ROW": row}
    if product and shift:
        inputs |= product.inputs | {"shift": shift}
        defines |= product.defines
    outputs = {"y": y, "g": scaled, "m": moments}
    rec.emit("row_sum", inputs, outputs, defines)
    return NormedRow(y, scaled, moments, eps)


def norm_fold(
    rec: Recorder, gain: Tensor, bias: Tensor, w: Tensor, shift: Tensor | None, name: str
) -> tuple[Tensor, Tensor]:
    """States (gain w, bias w + shift), each `[1, N]`: a norm's gain and bias behind the linear layer (w, shift)."""
    folded = folded_norm(rec, name, w.cols)
    inputs = {"gain": gain, "bias": bias, "w": w} | ({"shift": shift} if shift else {})
    outputs = {"g": folded[0], "b": folded[1]}
    rec.emit("norm_fold", inputs, outputs, label=f"{name}.folded", columns=1, flops=4 * w.rows * w.cols)
    return folded


def folded_norm(rec: Recorder, name: str, cols: int) -> tuple[Tensor, Tensor]:
    """The states that `norm_fold` writes for the linear layer `name`."""
    layout = fold(1, cols, rec.limits.max_texture_size)
    return rec.fixed(f"{name}.gain_w", layout, "state"), rec.fixed(f"{name}.bias_w", layout, "state")
