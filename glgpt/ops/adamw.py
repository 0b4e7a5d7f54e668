"""The optimizer step: the norm of all gradients, and AdamW (Loshchilov and Hutter 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor

SIDE = 32  # each of the first passes reduces its gradients to at most 32 x 32 texels with sums of squares
ACROSS = 64  # further passes reduce these texels to rows of this many texels, and then to one texel
MAX_TENSORS = 16  # maximum number of tensors that one pass adds up: every device can sample this many textures


@dataclass(frozen=True)
class LossScale:
    """A factor that scales gradients into the range of float16: the first value of `factor`.

    `overflowed` is a ping-pong pair of states (old, new) that holds a flag. The flag becomes 1 at the first norm that
    is not finite, and stays 1 until a caller clears it.
    """

    factor: Tensor
    overflowed: tuple[Tensor, Tensor]


def gradient_norm(
    rec: Recorder,
    gradients: Sequence[Tensor],
    clip: float,
    losses: Tensor,
    micro_batches: int,
    rows: int,
    scale: LossScale | None = None,
    name: str = "gradient_norm",
) -> Tensor:
    """Records the norm of all gradients together: (norm, factor by which to multiply gradients, finite, 0), `[1, 4]`.

    `finite` is 1 if the norm is finite, otherwise 0. `rows` is the number of tokens of a step, including tokens without
    a target; `gradients` are the gradients of (sum of losses) / `rows`. The factor turns them into the gradients of the
    mean loss over the targets, and clips these to the norm `clip` (0: no clipping). The returned norm is that of the
    gradients of the mean loss, before clipping. `losses` `[.., 4]` has a row for each micro-batch, with the number of
    its targets in the second column; the first `micro_batches` rows are added up.

    With `scale`, `gradients` have already been multiplied by this loss scale. The norm does not include the scale, and
    the factor also divides by the scale. `finite` is also 0 while the flag `scale.overflowed` is 1.
    """
    sums = [
        _sum_squares(rec, gradients[i : i + MAX_TENSORS], f"{name}.{i}") for i in range(0, len(gradients), MAX_TENSORS)
    ]
    while len(sums) > 1 or sums[0].cols > 4:
        width = ACROSS if len(sums) > MAX_TENSORS or max(s.layout.width * s.rows for s in sums) > ACROSS else 1
        sums = [_add_up(rec, sums[i : i + MAX_TENSORS], width, f"{name}.{i}") for i in range(0, len(sums), MAX_TENSORS)]
    y = rec.scratch(name, Layout(1, 4))
    defines = {"CLIP": float(clip), "MICRO_BATCHES": micro_batches, "ROWS": rows}
    inputs, outputs = {"x": sums[0], "losses": losses}, {"y": y}
    if scale:
        inputs |= {"loss_scale": scale.factor, "overflowed": scale.overflowed[0]}
        outputs |= {"after": scale.overflowed[1]}
        rec.ping_pong(*scale.overflowed)
    rec.emit("gradient_norm", inputs, outputs, defines)
    return y


def _sum_squares(rec: Recorder, gradients: Sequence[Tensor], name: str) -> Tensor:
    texels = max(g.rows * -(-g.cols // 4) for g in gradients)
    side = max(1, min(SIDE, round((texels / 16) ** 0.5)))
    y = rec.scratch(f"{name}.squares", Layout(side, 4 * side))
    inputs = {f"a{i}": g for i, g in enumerate(gradients)}
    every = " ".join(f"ADD(a{i}_at, A{i}_ROWS, {-(-g.cols // 4)})" for i, g in enumerate(gradients))
    rec.emit("sum_squares", inputs, {"y": y}, {"EVERY": every, "TEXELS": texels})
    return y


def _add_up(rec: Recorder, sums: Sequence[Tensor], width: int, name: str) -> Tensor:
    y = rec.scratch(f"{name}.squares", Layout(1, 4 * width))
    inputs = {f"a{i}": s for i, s in enumerate(sums)}
    every = " ".join(f"ADD(A{i}, A{i}_W, A{i}_H)" for i in range(len(sums)))
    texels = max(s.layout.width * s.rows for s in sums)
    rec.emit("add_up", inputs, {"y": y}, {"EVERY": every, "TEXELS": texels})
    return y


@dataclass(frozen=True)
class AdamW:
    """The constants of an AdamW step: the decay rates of the two running averages, epsilon, and the weight decay."""

    betas: tuple[float, float]
    eps: float
    decay: float


def adamw(
    rec: Recorder,
    x: tuple[Tensor, Tensor],
    exp_avg: tuple[Tensor, Tensor],
    exp_avg_sq: tuple[Tensor, Tensor],
    gradient: Tensor,
    norm: Tensor,
    settings: AdamW,
) -> None:
    """Records one AdamW step of a parameter x, with running averages of its gradients and of its squared gradients.

    x, `exp_avg` and `exp_avg_sq` are ping-pong pairs of states (old, new). `norm` is the output of `gradient_norm`. The
    caller of the entry sets the scalars `lr` (the learning rate), `unbias1` and `unbias2` (1 / (1 - beta^step) for the
    two decay rates beta).
    """
    beta1, beta2 = settings.betas
    defines = {"BETA1": float(beta1), "BETA2": float(beta2)}
    defines |= {"EPSILON": float(settings.eps), "DECAY": float(settings.decay)}
    inputs = {"x": x[0], "m": exp_avg[0], "s": exp_avg_sq[0], "g": gradient, "norm": norm}
    outputs = {"y": x[1], "exp_avg": exp_avg[1], "exp_avg_sq": exp_avg_sq[1]}
    rec.emit("adamw", inputs, outputs, defines, label=f"adamw {x[0].name}", columns=1)
    for old, new in (x, exp_avg, exp_avg_sq):
        rec.ping_pong(old, new)


def normal(
    rec: Recorder,
    x: Tensor,
    moments: tuple[Tensor, Tensor],
    mean: float,
    spread: float,
    site: int,
    rows: tuple[int, int],
    cols: tuple[int, int],
) -> None:
    """Records passes that fill the state x with normally distributed numbers and set AdamW's moments of x to zero.

    The numbers have the given mean and the standard deviation `spread`. They depend on a hash of the scalar `seed`, of
    `site` (the number of the parameter), and of the row and texel. `rows` and `cols` are (period, number in use): of
    every `period` rows or columns, the first `number in use` get numbers; the others are padding and stay zero.
    """
    defines = {"MEAN": mean, "SPREAD": spread, "SITE": site, "ROW_PERIOD": rows[0], "ROW_LIVE": rows[1]}
    defines |= {"COLUMN_PERIOD": cols[0], "COLUMN_LIVE": cols[1]}
    outputs = {"y": x, "m": moments[0], "s": moments[1]}
    rec.emit("normal", {}, outputs, defines, label=f"normal {x.name}", columns=1)
