"""Decides how far numbers may be from a reference. The page's `engine/tolerance.ts` follows the same rule.

Errors are relative to the root mean square (RMS) of a token's values in a tensor: activations grow with depth, but
relative errors hardly do. A rounding is the spacing of a format's numbers, relative to their size. Measured on
SmolLM2-135M (30 blocks), correct variants of a program (sums in another order, other fused passes, another rounding to
f16) change results by up to 8 roundings of f16; in a model of 6 blocks, they change results by up to 3. Faults (a
weight with a row of zeros, a head with the wrong rotation, swapped heads, a skipped block) change the values of the
affected tokens by 20 to 10,000 roundings.
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

# The error of a single value, relative to RMS + magnitude of the value, may be up to this multiple of the tolerance.
SINGLE = 8.0
# The RMS of a token's values is computed as sqrt(mean square + FLOOR^2). FLOOR is the smallest normal f16: relative
# errors of smaller values mean nothing.
FLOOR = 2.0**-14
OWN = 4  # the rounding of the measured tensor itself counts as much as the roundings in this many blocks
KL_LIMIT = 0.05  # nats per token: within this limit, generated text is hard to distinguish from the reference's text


_Positive = Annotated[float, Field(gt=0)]


class PageTolerance(TypedDict):
    """The numbers that a page needs: `relative` and `kl` of `Tolerance`, and the constants `SINGLE` and `FLOOR`."""

    relative: _Positive
    single: _Positive
    floor: _Positive
    kl: _Positive


@dataclass(frozen=True)
class Measured:
    """The distance of a tensor `[tokens, values]` from its reference.

    `relative` is the RMS of the relative errors of all tokens. `excess` is the error as a multiple of the tolerance;
    above 1, the tensor is out of tolerance. `at` is (token, number of the value) of the largest error.
    """

    relative: float
    excess: float
    at: tuple[int, int]


@dataclass(frozen=True)
class Tolerance:
    """Limits on differences from a reference.

    `relative` limits the relative error of a tensor, and `kl` limits the mean KL divergence of logits, in nats. With
    `absolute` = (atol, rtol), each value may instead be off by `atol + rtol * |reference|`. If `greedy` is true, the
    greedy token must be the same. `of` sets it to false if weights are rounded to a few bits: this rounding sometimes
    changes the greedy token.
    """

    relative: float
    kl: float = KL_LIMIT
    absolute: tuple[float, float] | None = None
    greedy: bool = True

    @classmethod
    def of(cls, dtype: str, blocks: int, same_weights: bool = False, **others: Any) -> Tolerance:
        """Returns the tolerance for a model with this many blocks whose weights are stored as `dtype`.

        With `AS_STORED`, the weights are equal to the reference's, and the tolerance is that of products with f16
        inputs. If `same_weights`, the weights of the reference are rounded to the format too. The squares of the
        blocks' rounding errors add up, so the tolerance grows with the square root of the number of blocks.
        """
        fmt = FORMATS["f16" if dtype == AS_STORED else dtype]
        lossy = fmt.quantised and not same_weights
        if fmt.quantised and same_weights:
            fmt = FORMATS[fmt.activations]
        return cls(fmt.roundings * fmt.spacing * math.sqrt(OWN + blocks), greedy=not lossy, **others)

    def measure(self, ours: NDArray[Any], reference: NDArray[Any]) -> Measured:
        """Measures how far `ours` is from `reference`, both `[tokens, values]`.

        Values that are not finite must be the same in both arrays.
        """
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
        """True if the logits of the tokens `ours` and `reference` are equal within the tolerance (no clear maximum)."""
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
    """Returns KL(reference || ours) in nats for each row of two arrays of logits `[T, vocab]`."""
    p, q = (x.astype(np.float64) - x.max(axis=1, keepdims=True) for x in (reference, ours))
    p -= np.log(np.exp(p).sum(axis=1, keepdims=True))
    q -= np.log(np.exp(q).sum(axis=1, keepdims=True))
    weights = np.exp(p)
    with np.errstate(invalid="ignore"):
        each = np.where(weights > 0, weights * (p - q), 0.0)  # if p and q are -inf, p - q is NaN
    result: NDArray[np.float64] = np.maximum(each.sum(axis=1), 0.0)
    return result


def tokens_first(array: NDArray[Any]) -> NDArray[Any]:
    """Returns an activation as `[T, values]`; for an activation `[heads, T, n]`, concatenates the heads of a token."""
    return array if array.ndim == 2 else array.transpose(1, 0, 2).reshape(array.shape[1], -1)
