"""Products: register-blocked for many rows, split over the inner dimension for one."""

from __future__ import annotations

from glgpt.ops.pointwise import activation_defines
from glgpt.record import Recorder, Tensor
from glgpt.tensor import Layout


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
) -> Tensor:
    """y `[M, N]` = act(x `[M, K]` w `[K, N]` + bias) + residual, bias `[1, N]` padded to whole tiles.

    y takes its row tiles from x, its column tiles from w, and `dtype`; a fragment writes a texel of each, in as many
    passes over the column tiles as the colour attachments ask. The residual has y's own layout.
    """
    if w.rows < x.cols or (residual and residual.layout.tiles != (x.layout.tiles[0], w.layout.tiles[1])):
        raise ValueError(f"{name}: {x.layout} times {w.layout} plus {residual}")
    y = rec.scratch(name, Layout(x.rows, w.cols, (x.layout.tiles[0], w.layout.tiles[1]), dtype))
    tr, tc = y.layout.tiles
    inputs = {"x": x, "w": w}
    defines = activation_defines(act) | {"SEGMENTS": _segments(x.layout, w.layout)}
    if bias:
        inputs["bias"] = bias
    if residual:
        inputs["r"], defines["RESIDUAL"] = residual, 1
        defines["RESIDUAL_TILE(i, j)"] = "R((i) * R_TC + (j), p.y, p.x)"
    at_once = min(tc, max(1, rec.limits.max_draw_buffers * y.layout.pairs // tr), 2)
    if tc % at_once or at_once % y.layout.pairs or tr * at_once // y.layout.pairs > rec.limits.max_draw_buffers:
        raise ValueError(f"{name}: {tr} x {tc} tiles do not fit {rec.limits.max_draw_buffers} draw buffers")
    for first in range(0, tc, at_once):
        share = 2 * x.rows * x.cols * w.cols * at_once // tc
        rec.emit(
            "matmul",
            inputs,
            {"y": y},
            defines | {"FIRST_COLUMN": first},
            columns=range(first, first + at_once),
            flops=share,
            nbytes=w.layout.nbytes * at_once // tc,
        )
    return y


def _segments(x: Layout, w: Layout) -> str:
    calls = []
    for layer, x0, starts, n in x.segments(w):
        (t0, w0), (t1, w1) = starts[0], starts[1] if len(starts) > 1 else (-1, 0)
        calls.append(f"segment({layer}, {x0}, {n}, {t0}, {w0}, {t1}, {w1});")
    return " ".join(calls)


def matvec(
    rec: Recorder, x: Tensor, w: Tensor, name: str, *, parts: int = 1, bias: Tensor | None = None
) -> Tensor:
    """One row times a matrix, x `[1, K]` w `[K, N]`, as `parts` partial sums `[parts, N]` over ranges of K.

    A target of one row wastes half of every quad and gives a GPU too little to do; the consumer adds the parts up.
    """
    k4 = -(-x.cols // 4)
    part = -(-k4 // parts)
    y = rec.scratch(name, Layout(-(-k4 // part), w.cols, (1, w.layout.tiles[1])))
    inputs = {"x": x, "w": w}
    defines: dict[str, int | float | str] = {"K4": k4, "PART": part, "ACT": 0}
    if bias:
        if y.rows > 1:
            raise ValueError(f"{name}: a split product has no bias")
        inputs["bias"] = bias
    rec.emit("matvec", inputs, {"y": y}, defines, flops=2 * x.cols * w.cols, nbytes=w.layout.nbytes)
    return y


def combine(rec: Recorder, x: Tensor, bias: Tensor, name: str, *, act: str | None = None) -> Tensor:
    """y `[1, N]` = act(bias + the sum of x's rows), x being the partial sums of `matvec`."""
    y = rec.scratch(name, Layout(1, x.cols, (1, x.layout.tiles[1])))
    rec.emit("combine", {"x": x, "bias": bias}, {"y": y}, activation_defines(act) | {"PARTS": x.rows})
    return y
