"""Defines a round's rules: which windows a client trains on, which updates are accepted, and how updates are combined.

A window is `context` consecutive tokens of the text. A change is the difference between a client's parameters after a
round and the parameters before the round.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.federation.protocol import OUTER_LR, OUTER_MOMENTUM, Vector
from glgpt.text.dataset import mixed, starts

# Maximum ratio of a change's norm to the parameters' norm. Measured: 0.6 in the first 100 steps of preset nano
PARAMETER_NORMS = 4.0
EARLIER_NORMS = 5.0  # maximum ratio of a change's norm to the median norm of recent changes
# A change whose norm is at most this multiple of the parameters' norm is always allowed. Measured: 0.13 in a later
# round of 25 steps
NORM_FLOOR = 0.1
# Factor on the norm of the largest change that AdamW can make. A client rounds its change for sending, which can
# increase the norm.
STEP_MARGIN = 1.1
NORM_ROUNDS = 10  # a new change is compared with the changes of this many recent rounds
CLIP = 1.5  # maximum ratio of a clipped change's norm to the median norm of the round's changes
# For each parameter, a trimmed mean sorts the clients' values, and leaves out this share of them at each end
TRIM = 0.2
# Consecutive rejected updates after which a client is set aside: all its further updates are rejected
MAX_STRIKES = 3
DELTA = 1e-5  # delta of the reported privacy budget (epsilon, delta)


def client_seed(seed: int, client: int) -> int:
    """Returns the seed with which a client draws windows of the text.

    The first client uses the session's seed, so that a federation of one client trains as `glgpt train` does.
    """
    return seed if client == 0 else mixed(seed, client)


def shard_of(client: int, number: int, shards: int) -> int:
    """Returns the number of a client's shard in round `number`.

    A shard is a share of the text's positions. A client draws its windows from its shard, which changes every round. No
    two clients of a round have the same shard.
    """
    return (client + number) % shards


def shard_starts(seed: int, step: int, rows: int, count: int, shard: tuple[int, int]) -> NDArray[np.int64]:
    """Returns the start positions of the `rows` windows of a client's step, from 0 to `count` - 1.

    `seed` is the client's seed. `shard` is (i, m): shard i of m, which holds the positions p with p % m == i. So no two
    clients that train on the session's text use the same window in a round.
    """
    i, m = shard
    return i + m * starts(seed, step, rows, (count - i + m - 1) // m)


class Claims(Protocol):
    """The metrics that a client claims.

    `protocol.Update`, `rounds.updates.Spooled` and `exchange.SupernodeClaims` have these properties.
    """

    @property
    def tokens(self) -> int: ...  # noqa: D102
    @property
    def steps(self) -> int: ...  # noqa: D102
    @property
    def loss(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class Bounds:
    """The largest values that an update may claim."""

    steps: int  # maximum local steps in a round
    tokens_per_step: int  # batch x context x accumulate
    loss: float  # nats per token


def loss_limit(vocab_size: int) -> float:
    """Returns the largest plausible loss in nats per token: four times the loss of a uniform guess."""
    return 4 * math.log(max(2, vocab_size))


def check_claims(claims: Claims, bounds: Bounds) -> None:
    """Raises GlgptError if the claims exceed `bounds` or contradict each other."""
    if not 1 <= claims.steps <= bounds.steps:
        raise GlgptError(f"the update claims {claims.steps} steps; they must be from 1 to {bounds.steps}")
    most = claims.steps * bounds.tokens_per_step
    if not 1 <= claims.tokens <= most:
        raise GlgptError(f"the update claims {claims.tokens} tokens; {claims.steps} steps take at most {most}")
    if not 0 <= claims.loss <= bounds.loss:  # also false for NaN
        raise GlgptError(f"the update claims a loss of {claims.loss:g}; the loss must be from 0 to {bounds.loss:.4g}")


@dataclass(frozen=True)
class StepLimits:
    """Limits the norm of a weight change by the largest change that AdamW can make in a number of steps."""

    values: int  # number of parameters
    rates: tuple[float, ...]  # learning rates of the round's steps
    betas: tuple[float, float]
    weight_decay: float

    def largest(self, parameters: float, steps: int) -> float:
        """Returns the largest norm that a change can have after `steps` steps; infinity if `betas` set no bound.

        `parameters` is the norm of the parameters. Without weight decay, AdamW changes a value in each step by the
        learning rate, multiplied by the quotient of the first moment and the square root of the second moment. By the
        Cauchy-Schwarz inequality, this quotient is at most `ratio` for any gradients.
        """
        first, second = self.betas
        if not first**2 < second < 1:
            return math.inf
        ratio = (1 - first) / math.sqrt((1 - second) * (1 - first**2 / second))
        total = sum(sorted(self.rates, reverse=True)[:steps])
        moved = total * max(1.0, ratio) * math.sqrt(self.values)
        return STEP_MARGIN * (moved + total * self.weight_decay * (parameters + moved))


@dataclass(frozen=True)
class NormLimits:
    """Limits the norm of a weight change, by the parameters' norm, the changes of recent rounds, and AdamW's limit."""

    parameters: float  # the norm of the parameters before the round
    recent: tuple[tuple[float, int], ...] = ()  # (norm, steps) of accepted changes in recent rounds
    steps: StepLimits | None = None

    def largest(self, steps: int) -> float:
        """Returns the largest norm that a change of `steps` steps may have.

        The norm may be at most `PARAMETER_NORMS` times the parameters' norm. If `self.steps` is given, the norm must
        also be one that AdamW can reach. This second limit matters in the first round, which lacks recent changes to
        compare with.

        In later rounds, a further limit is `EARLIER_NORMS` times the larger of two numbers: the median norm of recent
        changes, and `steps` times the median of their norms per step. The second number is needed because recent
        changes may have taken fewer steps. Norms up to `NORM_FLOOR` times the parameters' norm are always
        allowed.
        """
        most = PARAMETER_NORMS * self.parameters
        if self.steps is not None:
            most = min(most, max(self.steps.largest(self.parameters, steps), NORM_FLOOR * self.parameters))
        if not self.recent:
            return most
        norms, rates = zip(*((norm, norm / max(1, steps)) for norm, steps in self.recent), strict=True)
        usual = max(float(np.median(norms)), float(np.median(rates)) * steps)
        return min(most, max(EARLIER_NORMS * usual, NORM_FLOOR * self.parameters))

    def check(self, norm: float, steps: int) -> None:
        """Raises GlgptError if `norm` is too large for a change of `steps` steps."""
        largest = self.largest(steps)
        if not norm <= largest:  # also true for NaN
            raise GlgptError(f"the change's norm is {norm:.3g}; the maximum for {steps} steps is {largest:.3g}")


def recent_norms(lines: Iterable[Mapping[str, Any]], number: int) -> tuple[tuple[float, int], ...]:
    """Returns (norm, steps) of each change in the `NORM_ROUNDS` rounds before round `number`.

    `lines` are those of `rounds.jsonl`.
    """
    recent = [line for line in lines if number - NORM_ROUNDS <= line["round"] < number]
    devices = (device for line in recent for device in line.get("devices", ()))
    found = ((device.get("norm"), device.get("steps")) for device in devices)
    return tuple((norm, steps) for norm, steps in found if norm is not None and steps and math.isfinite(norm))


def norm(change: Vector) -> float:
    """Returns the Euclidean norm of a change. The squares are added up in float64."""
    return float(np.sqrt(np.sum(np.square(change, dtype=np.float64))))


def clip_factors(norms: list[float]) -> list[float]:
    """Returns the factor by which each change is multiplied, so that no norm exceeds `CLIP` * the median of `norms`."""
    if not norms:
        return []
    most = CLIP * float(np.median(norms))
    return [min(1.0, most / value) if value > 0 else 1.0 for value in norms]


def epsilon(noise: float, rounds: int, delta: float = DELTA) -> float:
    """Returns the epsilon of differential privacy that `rounds` rounds spend.

    Epsilon and `delta` bound the effect of adding or removing one device. `noise` is the standard deviation of a
    round's noise, divided by the largest change that one device can make to the mean. Gaussian noise gives rho =
    1 / (2 noise^2) per round, the rho of all rounds add up, and epsilon = rho + 2 sqrt(rho ln(1 / delta)): Bun and
    Steinke, "Concentrated Differential Privacy", 2016, propositions 1.3 and 1.6. Amplification by subsampling is not
    assumed.
    """
    rho = rounds / (2 * noise * noise)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def weighted_mean(rows: NDArray[np.float32], weights: list[float]) -> Vector:
    """Returns the weighted mean of `rows` [k, n] over k clients; a single row is returned unchanged, bit for bit."""
    if len(rows) == 1:
        return np.array(rows[0], np.float32)
    total = sum(weights)
    mean = np.zeros(rows.shape[1])
    for row, weight in zip(rows, weights, strict=True):
        mean += row * (weight / total)
    return mean.astype(np.float32)


def median(rows: NDArray[np.float32]) -> Vector:
    """Returns the median of `rows` [k, n] over the k clients, separately for each of the n columns."""
    return np.asarray(np.median(rows, axis=0), np.float32)


def trimmed_mean(rows: NDArray[np.float32], share: float = TRIM, least: int = 1) -> Vector:
    """Returns the mean of `rows` [k, n] over the k clients, without the largest and smallest entries of each column.

    Each of the n columns has one entry per client. At each end of a column's sorted entries, a `share` of the entries
    is left out, but at least `least`. One entry always remains. With fewer than three rows, nothing is left out.
    """
    k = len(rows)
    out = min(max(least, int(k * share)), (k - 1) // 2) if k >= 3 else 0
    ordered = np.sort(rows, axis=0) if out else rows
    mean: Vector = ordered[out : k - out].mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


@dataclass
class Outer:
    """DiLoCo's outer optimizer, which takes one step per round along the clients' mean change, with Nesterov momentum.

    With a learning rate of 1 and no momentum, the result equals the mean of the clients' parameters bit for bit.
    """

    lr: float = OUTER_LR
    momentum: float = OUTER_MOMENTUM
    velocity: Vector | None = None

    def step(self, before: Vector, mean: Vector) -> Vector:
        """Returns the parameters [n] after a round, given the parameters `before` the round and the clients' `mean`."""
        if self.lr == 1 and self.momentum == 0:
            return mean
        gradient = before.astype(np.float64) - mean
        velocity = gradient if self.velocity is None else self.momentum * self.velocity + gradient
        self.velocity = velocity.astype(np.float32)
        return np.asarray(before - self.lr * (gradient + self.momentum * velocity), np.float32)
