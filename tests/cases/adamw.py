"""Cases of the optimizer: the norm of gradients, a step, and initial parameters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
from helpers import reference_training as more
from hypothesis import strategies as st

from cases.case import Array, Case, Want, unfolded
from cases.draws import FLAG, MATRIX, RATES, shapes
from glgpt import ops
from glgpt.program.layout import Layout, fold, texels

if TYPE_CHECKING:
    from helpers.op_bench import Bench


def gradient_norm(b: Bench, s: SimpleNamespace) -> list[Want]:
    unfolded(b)
    sizes = [(s.rows, s.cols), (1, s.cols), (s.rows, 1)] * 6
    given = [b.normal(f"g{i}", *size, b.many(*size)) for i, size in enumerate(sizes[: s.tensors])]
    losses = b.given("losses", np.outer(s.counted, [0, 1, 0, 0]), role="state")
    # The gradients are those of three micro-batches with nine rows in all. `counted`: the number of targets of each
    # micro-batch, and a fourth number, which the op must ignore.
    mean = 9 / max(1, sum(s.counted[:3]))
    held = [mean * array for name, array in b.held.items() if name != "losses"]
    norm, factor = more.gradient_norm(held, s.clip)
    y = ops.gradient_norm(b, given, s.clip, losses, 3, 9)
    return [Want(y, np.array([[norm, mean * factor, 1.0, 0.0]]))]


def gradient_norm_scaled(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records the norm with a loss scale of 1,024. If `shift`, the flag for an overflow is already set."""
    unfolded(b)
    given = [b.normal(f"g{i}", s.rows, s.cols, b.many(s.rows, s.cols)) for i in range(2)]
    held = [b.held[f"g{i}"] / 1024 for i in range(2)]
    norm, factor = more.gradient_norm(held, s.clip)
    losses = b.given("losses", np.array([[0.0, s.rows, 0, 0]]), role="state")
    scale = b.given("loss_scale", np.array([[1024.0, 0, 0, 0]]), role="input")
    before = b.given("overflowed", np.array([[float(s.shift), 0, 0, 0]]), role="state")
    pair = before, b.fixed("overflowed.next", before.layout, "state")
    y = ops.gradient_norm(b, given, s.clip, losses, 1, s.rows, ops.LossScale(scale, pair))
    wanted = np.array([[norm, factor / 1024, float(not s.shift), 0.0]])
    return [Want(y, wanted), Want(before, np.array([[float(s.shift), 0, 0, 0]]))]


PARAMETER = {"x": 1, "m": 1, "s": 2}  # power of the random values; the second moment `s` must be positive


def adamw(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a step of AdamW for a parameter with padded rows. After the step, the old states have the new values."""
    rows, lr, step, betas, decay, eps = texels(s.rows), 1e-2, 5, (0.9, 0.99), 0.1 * s.shift, 1e-3
    layout = fold(rows, s.cols, b.limits.max_texture_size)

    def padded(values: Array) -> Array:
        return np.pad(values, ((0, rows - s.rows), (0, 0)))

    size = s.rows, s.cols
    x, m, squares = (
        b.given(n, padded(b.rng.standard_normal(size) ** p), layout, "state") for n, p in PARAMETER.items()
    )
    g = b.given("g", padded(b.rng.standard_normal(size)), Layout(rows, s.cols, (b.style.tiles[0], 1)))
    norm = b.given("norm", np.array([[2.0, 0.5, 1.0, 0.0]]))  # a clipping factor of 0.5
    b.more = {"lr": lr, "unbias1": 1 / (1 - betas[0] ** step), "unbias2": 1 / (1 - betas[1] ** step)}
    pairs = [(t, b.fixed(f"{t.name}.next", layout, "state")) for t in (x, m, squares)]
    ops.adamw(b, *pairs, g, norm, ops.AdamW(betas, eps, decay))
    a = b.held
    after = more.adamw(a["x"], a["m"], a["s"], 0.5 * a["g"], lr, betas, eps, decay, step)
    return [Want(old, value) for (old, _), value in zip(pairs, after, strict=True)]


def normal(b: Bench, s: SimpleNamespace) -> list[Want]:
    """Records a parameter's initial values. Two of every five rows and two of every eight columns are padding."""
    layout = fold(texels(s.rows), s.cols, b.limits.max_texture_size)
    x, m, squares = (b.given(name, b.rng.standard_normal((layout.rows, s.cols)), layout, "state") for name in "xms")
    b.more = {"seed": s.seed}
    ops.normal(b, x, (m, squares), 0.5, s.rate, 3, (5, 3), (8, 6))
    rows, cols = np.arange(layout.rows)[:, None], np.arange(s.cols)
    wanted = more.normal(layout.rows, s.cols, 0.5, s.rate, 3, s.seed)
    none = np.zeros((layout.rows, s.cols))
    return [Want(x, np.where((rows % 5 < 3) & (cols % 8 < 6), wanted, 0)), Want(m, none), Want(squares, none)]


PARTS = {"counted": st.sampled_from([(3, 3, 3, 3), (0, 0, 0, 5), (2, 0, 3, 1)])}  # the fourth is ignored


CLIPS = st.sampled_from([1.0, 0.0, 1e3])


TRAINING = {
    "gradient_norm": Case(
        shapes(**MATRIX, **PARTS, tensors=st.sampled_from([17, 1, 3]), clip=CLIPS),
        gradient_norm,
        (0.0, 16),
    ),
    "gradient_norm_scaled": Case(shapes(**MATRIX, clip=CLIPS, shift=FLAG), gradient_norm_scaled, (1e-12, 16)),
    "normal": Case(shapes(**MATRIX, **RATES), normal, (1e-5, 8)),
    "adamw": Case(shapes(**MATRIX, shift=FLAG), adamw, (1e-6, 8)),  # x plus its step, each up to 4, may be near 0
}
