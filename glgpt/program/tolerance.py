"""Decides how far numbers may be from a reference: one rule, which the page's `engine/parity.ts` follows as well.

Errors are relative to the root mean square (RMS) of what a token has of a tensor: activations grow with depth, and an
error relative to them hardly does. Measured on SmolLM2-135M, 30 blocks: sums in another order, other fused passes and
another rounding to f16 are up to 8 roundings of f16 from each other (6 blocks: 3), while a weight's row that is
zero, a head with the wrong rotation, swapped heads or a skipped block are 20 to 10,000 away, where they occur.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.program.formats import FORMATS

SINGLE = 8.0  # a single value may be off by this many times more than the RMS of all may, relative to RMS plus itself
FLOOR = 2.0**-14  # added to an RMS, in squares: the smallest normal half, below which relative errors mean nothing
OWN = 4  # blocks whose roundings count as much as those of the tensor itself
KL_LIMIT = 0.05  # nats a token: generated text is then hard to tell from the reference's


@dataclass(frozen=True)
class Measured:
    """The distance of a tensor `[tokens, values]` from its reference.

    `relative` is the RMS over tokens of each one's relative error, `excess` the multiple of the tolerance, `at` the
    (token, value) that is furthest off.
    """

    relative: float
    excess: float
    at: tuple[int, int]


@dataclass(frozen=True)
class Tolerance:
    """Limits on differences: the relative error of a tensor, the mean KL divergence of logits (nats), greedy tokens.

    With `absolute` = (atol, rtol), each value may be off by `atol + rtol * |reference|` instead. Without `greedy`,
    other greedy tokens are not a fault: weights rounded to few bits choose others now and then.
    """

    relative: float
    kl: float = KL_LIMIT
    absolute: tuple[float, float] | None = None
    greedy: bool = True

    @classmethod
    def of(cls, dtype: str, blocks: int, same_weights: bool = False, **others: Any) -> Tolerance:
        """Returns the tolerance of a model of this many blocks.

        With `same_weights`, the reference has the weights rounded to the format too.

        Roundings of blocks add up as their squares do, so that the tolerance grows with the root of their number.
        """
        fmt = FORMATS[dtype]
        lossy = fmt.quantised and not same_weights
        if fmt.quantised and same_weights:
            fmt = FORMATS[fmt.activations]
        return cls(fmt.roundings * fmt.spacing * math.sqrt(OWN + blocks), greedy=not lossy, **others)

    def measure(self, ours: NDArray[Any], theirs: NDArray[Any]) -> Measured:
        """Compares two arrays `[tokens, values]`. Values that are not finite must be the same."""
        ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        finite = np.isfinite(theirs)
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.where(finite & np.isfinite(ours), np.abs(ours - theirs), np.inf))
        size = np.where(finite, np.abs(theirs), 0.0)
        counts = np.maximum(1, finite.sum(axis=1))
        rms = np.sqrt((size**2).sum(axis=1) / counts + FLOOR**2)
        tokens = np.sqrt((error**2).sum(axis=1) / counts) / rms
        relative = float(np.sqrt(np.mean(tokens**2)))
        if self.absolute:
            with np.errstate(invalid="ignore", divide="ignore"):
                each = np.where(error > 0, error / (self.absolute[0] + self.absolute[1] * size), 0.0)
        else:
            each = error / (rms[:, None] + size) / (SINGLE * self.relative)
        token, value = np.unravel_index(int(np.argmax(each)), each.shape)
        excess = float(each[token, value])
        if not self.absolute:
            excess = max(excess, relative / self.relative)
        return Measured(relative, excess, (int(token), int(value)))

    def ties(self, logits: NDArray[Any], ours: int, theirs: int) -> bool:
        """True if one token's logits `[vocab]` of these two are as near as the tolerance: either is the greedy one."""
        logits = logits.astype(np.float64)
        rms = math.sqrt(float(np.mean(logits**2)))
        return bool(abs(logits[ours] - logits[theirs]) <= self.relative * rms)

    def __str__(self) -> str:
        if self.absolute:
            return "{:g} + {:g}|reference|".format(*self.absolute)
        return f"relative error {self.relative:.1e}"

    def as_json(self) -> dict[str, float]:
        """Returns the fields that a page needs."""
        return {"relative": self.relative, "single": SINGLE, "floor": FLOOR, "kl": self.kl}


def kl_divergence(reference: NDArray[Any], ours: NDArray[Any]) -> NDArray[np.float64]:
    """Returns KL(reference || ours) of two `[T, vocab]` of logits, in nats a row."""
    p, q = (x.astype(np.float64) - x.max(axis=1, keepdims=True) for x in (reference, ours))
    p -= np.log(np.exp(p).sum(axis=1, keepdims=True))
    q -= np.log(np.exp(q).sum(axis=1, keepdims=True))
    weights = np.exp(p)
    with np.errstate(invalid="ignore"):
        each = np.where(weights > 0, weights * (p - q), 0.0)  # where p is -inf, q may be too
    result: NDArray[np.float64] = np.maximum(each.sum(axis=1), 0.0)
    return result


def tokens_first(array: NDArray[Any]) -> NDArray[Any]:
    """An activation as `[T, values]`: of heads `[heads, T, n]`, those of a token follow each other."""
    return array if array.ndim == 2 else array.transpose(1, 0, 2).reshape(array.shape[1], -1)
