"""The loss of a language model: the cross-entropy of each row of logits with its target, the next token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glgpt.ops.pointwise import column_sums
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor

SLICES = 8  # slices of a row of logits; each fragment sums the exponentials of one slice


def cross_entropy(
    rec: Recorder,
    x: Tensor,
    targets: Tensor,
    scale: float,
    name: str = "loss",
    loss_scale: Tensor | None = None,
    dtype: str = "f32",
) -> Tensor:
    """Records the cross-entropy of the rows of x `[M, V]`: (sum of -log softmax(x)[target], number of targets, ..).

    The result is `[1, 4]`. `targets` is `[M, 1]`; a row with a negative target is ignored. The backward pass begins
    here: the gradient of x is that of `scale` times the sum of losses, and any gradient of the result is ignored. The
    gradient of x is stored as `dtype`. With `loss_scale` `[1, 4]`, that gradient is also multiplied by the first value
    of `loss_scale`.
    """
    rows = cross_entropy_rows(rec, x, targets, name)
    y = column_sums(rec, rows, name)

    def vjp(_: Sequence[Tensor], __: Gradients) -> Gradients:
        dx = rec.scratch(f"d.{x.name}", replace(x.layout, dtype=dtype))
        inputs = {"x": x, "rows": rows} | ({"loss_scale": loss_scale} if loss_scale else {})
        rec.emit("cross_entropy_vjp", inputs, {"y": dx}, {"SCALE": scale})
        return [dx]

    rec.differentiable(y, (x,), vjp)
    return y


def cross_entropy_rows(rec: Recorder, x: Tensor, targets: Tensor, name: str) -> Tensor:
    """Records (-log softmax(x)[target], 1, ..) of each row of x `[M, V]`: `[M, 4]`.

    The first two values are 0 for a negative target. The third and fourth values are for the gradient.
    """
    stats, rows = _stats(rec, x, name), rec.scratch(f"{name}.rows", Layout(x.rows, 4))
    rec.emit("cross_entropy", {"x": x, "stats": stats, "targets": targets}, {"y": rows})
    return rows


def prediction(rec: Recorder, x: Tensor, targets: Tensor, name: str = "prediction") -> Tensor:
    """Records how well each row predicts its target: `[M, 4]`.

    The four values are -log softmax(x)[target], the rank of the target, the probability of the likeliest column, and 1.
    x is `[M, V]`, and `targets` is `[M, 1]`. The rank is the number of columns with a greater value, or with the same
    value and a smaller index. The four values are zeros for a negative target.
    """
    stats, y = _stats(rec, x, name), rec.scratch(name, Layout(x.rows, 4))
    rec.emit("prediction", {"x": x, "stats": stats, "targets": targets}, {"y": y}, {"C4": -(-x.cols // 4)})
    return y


def _stats(rec: Recorder, x: Tensor, name: str) -> Tensor:
    """Records (maximum, sum of exponentials) of each of at most `SLICES` slices of each row of x."""
    c4 = -(-x.cols // 4)
    slice_texels = -(-c4 // SLICES)
    stats = rec.scratch(f"{name}.stats", Layout(x.rows, 4 * -(-c4 // slice_texels)))
    rec.emit("cross_entropy_stats", {"x": x}, {"y": stats}, {"SLICE": slice_texels, "C4": c4})
    return stats
