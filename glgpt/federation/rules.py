"""The rules of a round as plain functions: which windows a client draws, which updates count, and for how much."""

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

PARAMETER_NORMS = 4.0  # norms of the parameters that a change may have at most; measured: 0.6 after 100 first steps
EARLIER_NORMS = 5.0  # times the median of recent rounds that a change may have
NORM_FLOOR = 0.1  # norms of the parameters that are allowed whatever recent rounds had: a round's change is 0.13 of it
NORM_ROUNDS = 10  # rounds of which norms are compared
CLIP = 1.5  # times the median norm of a round's changes
TRIM = 0.2  # share of the clients left out at either end, value by value
STRIKES = 3  # rejected updates that set a client aside
DELTA = 1e-5  # for which `epsilon` is told
SHARDS = 256  # clients that may draw from one text without sharing a window


def client_seed(seed: int, client: int) -> int:
    """The seed of a client's windows; the first client's is the session's own, so that a federation of one trains as
    `glgpt train` does.
    """
    return seed if client == 0 else mixed(seed, client)


def shard_of(client: int, number: int, shards: int) -> int:
    """The shard of a client in a round: another one each round, and never that of another client."""
    return (client + number) % shards


def shard_starts(seed: int, step: int, rows: int, count: int, shard: tuple[int, int]) -> NDArray[np.int64]:
    """Where the windows of a client's step begin, `rows` of them, of `count` places; `seed` is the client's.

    A shard (i, m) holds the places that leave i when divided by m, so that no two clients of a round share a window.
    """
    i, m = shard
    return i + m * starts(seed, step, rows, (count - i + m - 1) // m)


class Claims(Protocol):
    """Claims of a client about its steps: of an `Update`, a spooled update or a supernode's reply."""

    @property
    def tokens(self) -> int: ...  # noqa: D102
    @property
    def steps(self) -> int: ...  # noqa: D102
    @property
    def loss(self) -> float: ...  # noqa: D102


@dataclass(frozen=True)
class Bounds:
    """The largest values that an update may claim."""

    steps: int  # local steps of the round
    tokens_per_step: int  # batch x context x accumulate
    loss: float  # nats a token


def loss_limit(vocab_size: int) -> float:
    """Returns the largest plausible loss in nats a token: four times that of guessing uniformly."""
    return 4 * math.log(max(2, vocab_size))


def check_claims(claims: Claims, bounds: Bounds) -> None:
    """Raises GlgptError for claims that a round of these bounds cannot produce."""
    if not 1 <= claims.steps <= bounds.steps:
        raise GlgptError(f"{claims.steps} steps are claimed of {bounds.steps}")
    most = claims.steps * bounds.tokens_per_step
    if not 1 <= claims.tokens <= most:
        raise GlgptError(f"{claims.tokens} tokens are claimed; {claims.steps} steps take {most}")
    if not 0 <= claims.loss <= bounds.loss:  # also false for NaN
        raise GlgptError(f"a loss of {claims.loss:g} is claimed; it must be from 0 to {bounds.loss:.4g}")


@dataclass(frozen=True)
class NormLimits:
    """Limits how large a change of the weights may be: by the parameters' norm and the changes of recent rounds."""

    parameters: float  # the norm of the parameters before the round
    recent: tuple[tuple[float, int], ...] = ()  # norm and steps of changes that were accepted in recent rounds

    def largest(self, steps: int) -> float:
        """Returns the largest norm that a change of `steps` steps may have.

        Of recent rounds both the norm and the norm a step count: a change of few steps is small, and large for its
        steps.
        """
        most = PARAMETER_NORMS * self.parameters
        if not self.recent:
            return most
        norms, rates = zip(*((norm, norm / max(1, steps)) for norm, steps in self.recent), strict=True)
        usual = max(float(np.median(norms)), float(np.median(rates)) * steps)
        return min(most, max(EARLIER_NORMS * usual, NORM_FLOOR * self.parameters))

    def check(self, norm: float, steps: int) -> None:
        """Raises GlgptError for a change that is too large."""
        largest = self.largest(steps)
        if not norm <= largest:  # also true for NaN
            raise GlgptError(
                f"the change's norm is {norm:.3g}; {steps} steps may change the weights by {largest:.3g} at most"
            )


def recent_norms(lines: Iterable[Mapping[str, Any]], number: int) -> tuple[tuple[float, int], ...]:
    """Returns norm and steps of the changes in the last rounds before `number`, from lines of `rounds.jsonl`."""
    recent = [line for line in lines if number - NORM_ROUNDS <= line["round"] < number]
    devices = (device for line in recent for device in line.get("devices", ()))
    found = ((device.get("norm"), device.get("steps")) for device in devices)
    return tuple((norm, steps) for norm, steps in found if norm is not None and steps and math.isfinite(norm))


def norm(change: Vector) -> float:
    """The Euclidean norm, summed in float64."""
    return float(np.sqrt(np.sum(np.square(change, dtype=np.float64))))


def clip_factors(norms: list[float]) -> list[float]:
    """What each change is multiplied with so that no norm exceeds `CLIP` times the median."""
    if not norms:
        return []
    most = CLIP * float(np.median(norms))
    return [min(1.0, most / value) if value > 0 else 1.0 for value in norms]


def epsilon(noise: float, rounds: int, delta: float = DELTA) -> float:
    """The epsilon of differential privacy that so many rounds spend, for a device whose changes are there or not.

    `noise` is the standard deviation of a round's noise, over what one device can move the mean. Gaussian noise gives
    rho = 1 / (2 noise^2) a round, rounds add up, and epsilon = rho + 2 sqrt(rho ln(1 / delta)): Bun and Steinke,
    "Concentrated Differential Privacy", 2016, propositions 1.3 and 1.6. No amplification by
    subsampling is assumed.
    """
    rho = rounds / (2 * noise * noise)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def weighted_mean(rows: NDArray[np.float32], weights: list[float]) -> Vector:
    """The mean of rows [k, n] by weight; one row comes back as it is, bit for bit."""
    if len(rows) == 1:
        return np.array(rows[0], np.float32)
    total = sum(weights)
    mean = np.zeros(rows.shape[1])
    for row, weight in zip(rows, weights, strict=True):
        mean += row * (weight / total)
    return mean.astype(np.float32)


def trimmed_mean(rows: NDArray[np.float32], share: float = TRIM) -> Vector:
    """The mean of rows [k, n], value by value, without the greatest and the smallest `share` of them each.

    Of three rows or more at least one of either end is left out; of fewer, none.
    """
    k = len(rows)
    out = min(max(1, int(k * share)), (k - 1) // 2) if k >= 3 else 0
    ordered = np.sort(rows, axis=0) if out else rows
    mean: Vector = ordered[out : k - out].mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


@dataclass
class Outer:
    """The outer optimizer of DiLoCo: Nesterov's momentum over the mean change of a round.

    A rate of 1 without momentum takes the mean itself, bit for bit.
    """

    lr: float = OUTER_LR
    momentum: float = OUTER_MOMENTUM
    velocity: Vector | None = None

    def step(self, before: Vector, mean: Vector) -> Vector:
        """The parameters after a round, from those before it and the clients' mean [n] each."""
        if self.lr == 1 and self.momentum == 0:
            return mean
        gradient = before.astype(np.float64) - mean
        velocity = gradient if self.velocity is None else self.momentum * self.velocity + gradient
        self.velocity = velocity.astype(np.float32)
        return np.asarray(before - self.lr * (gradient + self.momentum * velocity), np.float32)
