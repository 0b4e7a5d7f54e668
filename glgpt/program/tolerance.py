"""Decides how far numbers may be from a reference. The page's `engine/parity.ts` follows the same rule.

Errors are relative to the root mean square (RMS) of a token's values in a tensor: activations grow with depth, but
relative errors hardly do. Measured on SmolLM2-135M (30 blocks), sums in another order, other fused passes and another
rounding to f16 differ by up to 8 roundings of f16 (6 blocks: 3). A weight with a row of zeros, a head with the wrong
rotation, swapped heads or a skipped block differ by 20 to 10,000 at the tokens they affect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from glgpt.program.formats import AS_STORED, FORMATS

SINGLE = 8.0  # a single value may be off by this multiple of the tolerance, relative to the RMS plus the value itself
FLOOR = 2.0**-14  # added to the RMS (in squares): the smallest normal f16, below which relative errors mean nothing
OWN = 4  # the roundings of a tensor itself count as much as those of this many blocks
KL_LIMIT = 0.05  # nats per token: generated text is then hard to tell from the reference's


_Positive = Annotated[float, Field(gt=0)]


class PageTolerance(TypedDict):
    """The fields of a tolerance that a page needs."""

    relative: _Positive
    single: _Positive
    floor: _Positive
    kl: _Positive


@dataclass(frozen=True)
class Measured:
    """The distance of a tensor `[tokens, values]` from its reference.

    `relative` is the RMS over all tokens of their relative errors, `excess` the error as a multiple of the tolerance,
    and `at` the (token, value) with the largest error.
    """

    relative: float
    excess: float
    at: tuple[int, int]


@dataclass(frozen=True)
class Tolerance:
    """Limits on differences: the relative error of a tensor, the mean KL divergence of logits (nats), greedy tokens.

    With `absolute` = (atol, rtol), each value may instead be off by `atol + rtol * |reference|`. Without `greedy`, a
    different greedy token is not an error, since weights rounded to few bits sometimes choose another one.
    """

    relative: float
    kl: float = KL_LIMIT
    absolute: tuple[float, float] | None = None
    greedy: bool = True

    @classmethod
    def of(cls, dtype: str, blocks: int, same_weights: bool = False, **others: Any) -> Tolerance:
        """Returns the tolerance of a model of this many blocks.

        Weights as stored are the reference's, and the inputs of products are f16. With `same_weights`, the weights of
        the reference are rounded to the format too. The squares of the blocks' rounding errors add up, so that the
        tolerance grows with the square root of the number of blocks.
        """
        fmt = FORMATS["f16" if dtype == AS_STORED else dtype]
        lossy = fmt.quantised and not same_weights
        if fmt.quantised and same_weights:
            fmt = FORMATS[fmt.activations]
        return cls(fmt.roundings * fmt.spacing * math.sqrt(OWN + blocks), greedy=not lossy, **others)

    def measure(self, ours: NDArray[Any], reference: NDArray[Any]) -> Measured:
        """Compares two arrays `[tokens, values]`. Values that are not finite must be the same."""
        ours, reference = ours.astype(np.float64), reference.astype(np.float64)
        same = (ours == reference) | (np.isnan(ours) & np.isnan(reference))
        finite = np.isfinite(reference)
        with np.errstate(invalid="ignore"):
            error = np.where(same, 0.0, np.where(finite & np.isfinite(ours), np.abs(ours - reference), np.inf))
        size = np.where(finite, np.abs(reference), 0.0)
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

    def ties(self, logits: NDArray[Any], ours: int, reference: int) -> bool:
        """True if the `logits` of two tokens are equal within the tolerance, so that either may be the greedy one."""
        logits = logits.astype(np.float64)
        rms = math.sqrt(float(np.mean(logits**2)))
        return bool(abs(logits[ours] - logits[reference]) <= self.relative * rms)

    def __str__(self) -> str:
        if self.absolute:
            return "{:g} + {:g}|reference|".format(*self.absolute)
        return f"relative error {self.relative:.1e}"

    def as_json(self) -> PageTolerance:
        """Returns the fields that a page needs."""
        return {"relative": self.relative, "single": SINGLE, "floor": FLOOR, "kl": self.kl}


def kl_divergence(reference: NDArray[Any], ours: NDArray[Any]) -> NDArray[np.float64]:
    """Returns KL(reference || ours) of two arrays of logits `[T, vocab]`, in nats for each row."""
    p, q = (x.astype(np.float64) - x.max(axis=1, keepdims=True) for x in (reference, ours))
    p -= np.log(np.exp(p).sum(axis=1, keepdims=True))
    q -= np.log(np.exp(q).sum(axis=1, keepdims=True))
    weights = np.exp(p)
    with np.errstate(invalid="ignore"):
        each = np.where(weights > 0, weights * (p - q), 0.0)  # q may be -inf wherever p is
    result: NDArray[np.float64] = np.maximum(each.sum(axis=1), 0.0)
    return result


def tokens_first(array: NDArray[Any]) -> NDArray[Any]:
    """Returns an activation as `[T, values]`; of `[heads, T, n]`, the heads of a token are concatenated."""
    return array if array.ndim == 2 else array.transpose(1, 0, 2).reshape(array.shape[1], -1)
