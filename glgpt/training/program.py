"""Records the program of a training step: forward, backward, the norm of the gradients, AdamW."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any

from glgpt import ops
from glgpt.errors import GlgptError
from glgpt.inference.arguments.checks import flag
from glgpt.inference.chunks import FEW_SIZES
from glgpt.inference.programs import record_generation
from glgpt.models.network import Batch, Network
from glgpt.models.spec import ModelConfig
from glgpt.program.kernel import Kernel
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits, Program
from glgpt.program.tensor import Tensor
from glgpt.system.memory import uncollected
from glgpt.training.settings import MAX_RATE, PRECISIONS

MOMENTS = ("moment", "squares")  # AdamW's running averages of a parameter's gradients
SLOTS = 256  # maximum micro-batches of a step; `losses` has a row for each, and one for `evaluate`


@dataclass(frozen=True)
class Recipe:
    """Everything that a recorded training step depends on, except the model.

    A step runs `accumulate` micro-batches, each of `batch` sequences of `context` tokens. `betas`, `eps` and
    `weight_decay` are AdamW's; the decay applies only to matrices. `clip` is the maximum norm of all gradients together
    (0: no clipping). `dropout` and `recompute` are as in `models.network.Batch`. With `precision` f16, the inputs of
    products and the activations saved for the backward pass are stored as float16. Parameters, moments, the residual
    stream, sums and losses stay f32. The loss is scaled (`loss_scale`).
    """

    batch: int
    context: int
    accumulate: int = 1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    dropout: float = 0.0
    recompute: bool = False
    precision: str = "f32"

    @property
    def rows(self) -> int:
        """Number of rows (tokens) of a whole step; each has a target."""
        return self.batch * self.context * self.accumulate

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise GlgptError(f"precision is {self.precision!r}; it must be one of {', '.join(PRECISIONS)}")
        for name in ("batch", "context", "accumulate"):
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise GlgptError(f"{name} is {value!r}; it must be a positive integer")
            object.__setattr__(self, name, int(value))  # checkpoints hold Python's numbers, not NumPy's
        try:
            b1, b2 = map(float, self.betas)
        except (TypeError, ValueError):
            raise GlgptError(f"betas are {self.betas!r}; they must be two numbers") from None
        object.__setattr__(self, "betas", (b1, b2))
        if not 0 < self.eps < math.inf:
            raise GlgptError(f"eps is {self.eps}; it must be above 0 and finite")
        below = {"dropout": (self.dropout, 1), "weight_decay": (self.weight_decay, math.inf)}
        below |= {"clip": (self.clip, math.inf)} | {f"betas[{i}]": (beta, 1) for i, beta in enumerate(self.betas)}
        for name, (number, end) in below.items():
            if not 0 <= number < end:
                raise GlgptError(f"{name} is {number}; it must be at least 0 and below {end}")
        for name in ("eps", "weight_decay", "clip", "dropout"):
            object.__setattr__(self, name, float(getattr(self, name)))
        object.__setattr__(self, "recompute", flag("recompute", self.recompute))


def program_digest(config: ModelConfig, recipe: Recipe) -> str:
    """Returns the SHA-256 of the model's configuration and of the recipe, except for `recompute`.

    Only trainers with equal digests can train in one federated session.
    """
    fields = {"config": config.fields(), "recipe": asdict(recipe) | {"recompute": False}}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def checked_rate(lr: Any) -> float:
    """Returns a learning rate. Raises GlgptError for an invalid one."""
    if not (isinstance(lr, Real) and 0 <= float(lr) <= MAX_RATE):
        raise GlgptError(f"lr is {lr!r}; it must be a number from 0 to 3.4e38")
    return float(lr)


def checked_seed(seed: Any) -> int:
    """Returns the seed of fresh parameters and dropout. Raises GlgptError for an invalid one."""
    if not (isinstance(seed, Integral) and 0 <= int(seed) < 1 << 32):
        raise GlgptError(f"seed is {seed!r}; it must be an integer from 0 to 2^32 - 1")
    return int(seed)


@uncollected()
def training_program(config: ModelConfig, recipe: Recipe, limits: Limits, kernel: Kernel) -> Program:
    """Returns the program with the entries of `record_training`. Raises GlgptError if it exceeds the limits."""
    rec = Recorder(limits)
    try:
        record_training(rec, config, recipe, kernel)
        return rec.program()
    except ValueError as error:
        if isinstance(error, GlgptError):
            raise
        raise GlgptError(
            f"n_embd {config.n_embd}: too large for textures of {limits.max_texture_size} texels a side"
        ) from error


def record_training(rec: Recorder, config: ModelConfig, recipe: Recipe, kernel: Kernel) -> None:
    """Records the entries of training: `init`, `backward`, `accumulate`, `update`, `evaluate` and those of generation.

    An entry is a named list of passes, and a state is a texture that outlives an entry. `init` makes fresh parameters
    from the scalar `seed`. `backward` runs the first micro-batch and stores its gradients in the states
    `d.<parameter>`. They are the gradients of (sum of losses) / (rows of the whole step), in f16 multiplied by the loss
    scale. `accumulate` (only if there are several micro-batches) runs another micro-batch and adds its gradients to
    these states. `backward`, `accumulate` and `evaluate` store the sum of losses and the number of targets other than
    -1 in row `row` of the state `losses`: row 0 for `backward`, the next rows for `accumulate`, and row `SLOTS` for
    `evaluate`. `update` takes an AdamW step on the mean loss over all these targets. In the state `gradient_norm`,
    `update` stores the norm of the gradients, the factor by which it multiplied them, and 1 if the norm is finite.
    After the parameters have changed, `prepare` must be played before a generation.

    Raises GlgptError if the limits do not allow the step.
    """
    if recipe.context > config.n_positions:
        raise GlgptError(f"a context of {recipe.context} tokens is beyond the model's n_positions {config.n_positions}")
    if recipe.accumulate > SLOTS:
        raise GlgptError(f"a step of {recipe.accumulate} micro-batches is beyond {SLOTS}; use larger batches")
    if recipe.batch * recipe.context > (limit := rec.limits.max_texture_size):
        raise GlgptError(
            f"a batch of {recipe.batch} x {recipe.context} tokens is beyond the {limit} that this device takes; "
            "use a smaller batch, and accumulate more batches"
        )
    batch = Batch(recipe.batch, recipe.dropout, recipe.recompute)
    network = Network(rec, config, kernel, recipe.precision, batch=batch, role="state")
    with rec.entry("init"):
        _initial(network)
    with rec.entry("backward", fused=True):
        gradients = _backward(network, recipe, {})
    if recipe.accumulate > 1:
        with rec.entry("accumulate", fused=True):
            for weight, total in _backward(network, recipe, gradients).items():
                rec.ping_pong(gradients[weight], total)
    with rec.entry("evaluate"):
        _loss(Network(rec, config, kernel, recipe.precision, batch=Batch(recipe.batch), role="state"), recipe)
    with rec.entry("update", fused=True):
        scale = _loss_scale(rec) if recipe.precision != "f32" else None
        norm = ops.gradient_norm(
            rec, list(gradients.values()), recipe.clip, _losses(rec), recipe.accumulate, recipe.rows, scale
        )
        rec.store(norm, "gradient_norm")
        for parameter, (weight, gradient) in zip(config.parameters.values(), gradients.items(), strict=True):
            _step(network, weight, gradient, norm, recipe, recipe.weight_decay if parameter.decayed else 0.0)
    record_generation(Network(rec, config, kernel, role="state"), sizes=FEW_SIZES)


def _loss(network: Network, recipe: Recipe) -> Tensor:
    rec = network.rec
    logits = network.logits(network.prefill(recipe.context))
    scale = _loss_scale(rec).factor if rec.tape and recipe.precision != "f32" else None
    loss = ops.cross_entropy(
        rec, logits, _targets(rec, recipe), 1.0 / recipe.rows, loss_scale=scale, dtype=recipe.precision
    )
    ops.place_rows(rec, loss, _losses(rec), "row")
    return loss


def record_predictions(network: Network, recipe: Recipe) -> None:
    """Records `ops.prediction` for each token of a batch; the results are written to the state `predictions`."""
    rec = network.rec
    logits = network.logits(network.prefill(recipe.context))
    rec.store(ops.prediction(rec, logits, _targets(rec, recipe)), "predictions")


def _targets(rec: Recorder, recipe: Recipe) -> Tensor:
    return rec.fixed("targets", Layout(recipe.batch * recipe.context, 1), "input")


def _loss_scale(rec: Recorder) -> ops.LossScale:
    factor = rec.fixed("loss_scale", Layout(1, 4), "input")
    old, new = (rec.fixed(f"overflowed{suffix}", Layout(1, 4), "state") for suffix in ("", ".next"))
    return ops.LossScale(factor, (old, new))


def _losses(rec: Recorder) -> Tensor:
    return rec.fixed("losses", Layout(SLOTS + 1, 4), "state")


def _backward(network: Network, recipe: Recipe, so_far: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """Records the forward and backward pass of a micro-batch; returns the state of each parameter's gradient.

    `so_far` maps each parameter to its gradient over the earlier micro-batches; it is empty for the first micro-batch.
    The gradients of this micro-batch are added to these gradients.
    """
    rec, suffix = network.rec, ".sum" if so_far else ""
    with rec.taping() as tape:
        loss = _loss(network, recipe)
    found = tape.backward(so_far | {loss: loss})
    weights = [network.parameter(name) for name in network.config.parameters]
    return {w: rec.store(found[w], f"d.{w.name}{suffix}") for w in weights}


def _step(network: Network, x: Tensor, gradient: Tensor, norm: Tensor, recipe: Recipe, decay: float) -> None:
    first, second = ((t, network.rec.fixed(f"{t.name}.next", t.layout, "state")) for t in _moments(network, x))
    pair = (x, network.rec.fixed(f"{x.name}.next", x.layout, "state"))
    ops.adamw(network.rec, pair, first, second, gradient, norm, ops.AdamW(recipe.betas, recipe.eps, decay))


def _moments(network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
    first, second = (network.rec.fixed(f"{x.name}.{moment}", x.layout, "state") for moment in MOMENTS)
    return first, second


def _initial(network: Network) -> None:
    """Records the passes that make fresh parameters, with the mean and standard deviation of each `Parameter`."""
    for site, parameter in enumerate(network.config.parameters.values()):
        x = network.parameter(parameter.name)
        rows, cols = parameter.used(x.rows, x.cols)
        ops.normal(network.rec, x, _moments(network, x), parameter.mean, parameter.deviation, site, rows, cols)
