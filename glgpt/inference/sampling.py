"""Sampling: settings and their ranges, the device's scalars, and the reference implementation on the host.

The device draws (`ops.sample`). If it cannot decide, `Sampler.choose` does, from the row of logits in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt import ops
from glgpt.errors import ArgumentError, GlgptError, written
from glgpt.inference.arguments.checks import integer, number, real

NOT_FINITE = "the model's logits are not finite; its weights overflow this dtype (try --dtype f32)"
SAMPLE, SAMPLE_NUCLEUS = "sample", "sample_nucleus"
SAMPLING = (SAMPLE, SAMPLE_NUCLEUS)  # entries
COLDEST = 1e-30  # below this temperature, float32 sampling is greedy
FARTHEST = 3e38  # a margin that excludes no logit
REACHED = 1 - 2.0**-22  # factor for top-p and min-p: values that reach them exactly must do so in float32 too
MAX_SEED = 2**128 - 1
MIN_PENALTY, MAX_PENALTY = 1e-30, 1e30  # any logit, divided or multiplied, fits a float64
MAX_BIAS = 3e38
ON_HOST = 0xD1CE  # makes the host's random numbers differ from the device's


def hash4(v: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Returns four pseudo-random 32-bit numbers from four, as `glsl/hash.glsl` does (pcg4d, Jarzynski & Olano 2020)."""
    most = 0xFFFFFFFF
    x, y, z, w = ((a * 1664525 + 1013904223) & most for a in v)
    for last in (False, True):
        x = (x + y * w) & most
        y = (y + z * x) & most
        z = (z + x * y) & most
        w = (w + y * z) & most
        if not last:
            x, y, z, w = (a ^ a >> 16 for a in (x, y, z, w))
    return x, y, z, w


def draw_seed(seed: int) -> int:
    """Returns the 32-bit seed for the device; every 32-bit word of a larger seed changes it."""
    found = 0
    while seed:
        found = (found * 0x9E3779B1 + seed) & 0xFFFFFFFF if found else seed & 0xFFFFFFFF
        seed >>= 32
    return found


class Sampler:
    """Temperature, top-k, nucleus (top-p, Holtzman et al. 2020) and min-p (Nguyen et al. 2024) sampling.

    Each filters the tokens that the previous one leaves. The same seed gives the same choices. Temperature 0 is greedy.
    Before these, a `repetition_penalty` (Keskar et al. 2019) divides positive logits of tokens that are in the text and
    multiplies negative ones; then `logit_bias` adds to the logits of ids, where -inf forbids one. Raises ArgumentError
    for values of the wrong type or out of range.
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> None:
        allowed = f"a number from 0 (greedy) to {ops.MAX_TEMPERATURE:g}"
        self.temperature = number("temperature", temperature, lambda x: 0 <= x <= ops.MAX_TEMPERATURE, allowed)
        self.top_k = None if top_k is None else integer("top-k", top_k, 1)
        self.top_p = None if top_p is None else number("top-p", top_p, lambda x: 0 < x <= 1, "above 0 and at most 1")
        self.min_p = number("min-p", 0 if min_p is None else min_p, lambda x: 0 <= x <= 1, "a number from 0 to 1")
        drawn = int(np.random.default_rng().integers(2**32)) if seed is None else seed
        self.seed = integer("seed", drawn, 0, MAX_SEED)
        penalty, allowed = repetition_penalty, f"from {MIN_PENALTY:g} to {MAX_PENALTY:g} (1: none)"
        self.repetition_penalty = number(
            "repetition penalty", 1 if penalty is None else penalty, lambda x: MIN_PENALTY <= x <= MAX_PENALTY, allowed
        )
        self.logit_bias = _biases({} if logit_bias is None else logit_bias)
        self._forbidden = [i for i, bias in self.logit_bias.items() if bias == -math.inf]

    @property
    def adjusts(self) -> bool:
        """True if logits are changed before a token is chosen; the host then chooses."""
        return self.repetition_penalty != 1 or bool(self.logit_bias)

    def check_vocabulary(self, size: int) -> None:
        """Raises ArgumentError if the bias names an id outside a vocabulary of `size`, or forbids all of it."""
        if (last := max(self.logit_bias, default=0)) >= size:
            raise ArgumentError(f"logit bias names id {last}, and the vocabulary has {size}")
        if len(self._forbidden) == size:
            raise ArgumentError(f"logit bias forbids all {size} tokens of the vocabulary; leave at least one")

    def adjusted(self, logits: NDArray[np.floating], ids: Sequence[int]) -> NDArray[np.floating]:
        """Returns logits `[vocab]` after the text `ids`, with penalty and bias applied.

        Raises GlgptError if the model's logits are not finite.
        """
        if not self.adjusts:
            return logits
        check_finite(logits)
        found = logits.astype(np.float64)
        seen = np.unique(np.asarray(ids, np.int64))
        penalty = self.repetition_penalty
        found[seen] = np.where(found[seen] > 0, found[seen] / penalty, found[seen] * penalty)
        for i, bias in self.logit_bias.items():
            found[i] += bias
        return found

    @property
    def greedy(self) -> bool:
        """True if the choice is always the largest logit."""
        return self.temperature < COLDEST or self.top_k == 1

    @property
    def entry(self) -> str | None:
        """Name of the entry that draws a token; None for greedy sampling, whose token is already there."""
        if self.greedy:
            return None
        return SAMPLE if self.top_k is not None or self.top_p in (None, 1) else SAMPLE_NUCLEUS

    def scalars(self, step: int, vocab: int) -> dict[str, float]:
        """Returns the scalars of that entry, to draw token `step` of this seed from `vocab` logits."""
        k, p, temperature = self.top_k or 0, 1.0 if self.top_p is None else float(self.top_p), self.temperature
        seed = draw_seed(self.seed)
        return {
            "draw_seed": seed - (seed >> 31 << 32),  # as a signed number
            "draw_step": step,
            "inverse_temperature": 1 / temperature,
            "margin": min(FARTHEST, temperature * -math.log(self.min_p) / REACHED) if self.min_p else FARTHEST,
            "nucleus_width": nucleus_width(temperature, p, vocab),
            "top_k": min(k, 2**31 - 1),
            "top_p": p if p == 1 else p * REACHED,
        }

    def probabilities(self, logits: NDArray[np.floating]) -> NDArray[np.float64]:
        """Returns the distribution `[vocab]` that a token is drawn from, given logits `[vocab]`."""
        if self.greedy:
            certain = np.zeros(len(logits))
            certain[int(np.argmax(logits))] = 1.0
            return certain
        scaled = logits.astype(np.float64) / self.temperature
        order = np.argsort(-scaled, kind="stable")[: self.top_k]
        weights = np.exp(scaled[order] - scaled[order[0]])
        if self.top_p is not None:  # the shortest list of best tokens that reaches top_p
            weights[int(np.searchsorted(np.cumsum(weights), self.top_p * weights.sum())) + 1 :] = 0
        weights[weights < self.min_p] = 0  # the best one weighs 1
        out = np.zeros(len(logits))
        out[order] = weights / weights.sum()
        return out

    def choose(self, logits: NDArray[np.floating], step: int = 0) -> int:
        """Draws token `step` of this seed from logits `[vocab]`.

        Raises GlgptError if they are not finite; those of tokens that the bias forbids may be -inf.
        """
        check_finite(np.delete(logits, self._forbidden) if self._forbidden else logits)
        if self.greedy:
            return int(np.argmax(logits))
        cumulative = np.cumsum(self.probabilities(logits))
        high, low, _, _ = hash4((draw_seed(self.seed), step & 0xFFFFFFFF, ON_HOST, 0))
        random = ((high >> 5) * 2**26 + (low >> 6)) / 2**53
        return int(np.searchsorted(cumulative, random * cumulative[-1], side="right"))


def check_finite(logits: NDArray[np.floating]) -> None:
    """Raises GlgptError if a logit is NaN or infinite."""
    if not np.isfinite(logits).all():
        raise GlgptError(NOT_FINITE)


def _biases(given: Any) -> dict[int, float]:
    """Returns biases by id. Raises ArgumentError for other types, negative ids, NaN, and beyond `MAX_BIAS`."""
    if not isinstance(given, Mapping):
        raise ArgumentError(f"logit bias is {written(given)}; it must map ids to numbers, such as {{198: -100}}")
    found = {}
    for i, bias in given.items():
        value = real(bias)
        if value is None or not (abs(value) <= MAX_BIAS or value == -math.inf):
            allowed = f"a number up to {MAX_BIAS:g}, or -inf to forbid the token"
            raise ArgumentError(f"logit bias of {written(i)} is {written(bias)}; it must be {allowed}")
        found[integer("an id of logit bias", i)] = value
    return found


def nucleus_width(temperature: float, top_p: float, vocab: int) -> float:
    """Returns how far below the largest logit to search for the end of the nucleus: a power of two.

    All tokens below that together weigh less than 1 - top_p of the largest.
    """
    return float(2.0 ** math.ceil(math.log2(temperature * math.log(2 * vocab / max(1 - top_p, 2**-24)))))
