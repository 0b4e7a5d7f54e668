"""Choosing a token from one row of logits: the settings, what the device is told of them, and their definition.

The device draws (`ops.sample`). Where it cannot decide, `Sampler.choose` does, from the row of logits in float64.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError

NOT_FINITE = "the model's logits are not finite; its weights overflow this dtype (try --dtype f32)"
SAMPLE, SAMPLE_NUCLEUS = "sample", "sample_nucleus"
SAMPLING = (SAMPLE, SAMPLE_NUCLEUS)  # entries
COLDEST = 1e-30  # the least temperature that makes a difference in float32
FARTHEST = 3e38  # a margin below which no logit is
REACHED = 1 - 2.0**-22  # of top-p and min-p: what reaches it exactly must do so in float32 too
ON_HOST = 0xD1CE  # tells the host's random numbers from the device's


def whole(name: str, value: SupportsIndex) -> int:
    """The value as an int. Raises GlgptError, with its name, for what is no whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise GlgptError(f"{name} is {value!r}; it must be a whole number") from None


def hash4(v: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Four pseudo-random 32-bit numbers of four, as `glsl/hash.glsl` makes them (pcg4d, Jarzynski and Olano 2020)."""
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
    """The 32 bits of a seed that a device is given; all words of a larger one count."""
    found = 0
    while seed:
        found = (found * 0x9E3779B1 + seed) & 0xFFFFFFFF if found else seed & 0xFFFFFFFF
        seed >>= 32
    return found


class Sampler:
    """Temperature, top-k, nucleus (top-p, Holtzman et al. 2020) and min-p (Nguyen et al. 2024) sampling.

    Each cuts what the one before leaves. The same seed gives the same choices. Temperature 0 is greedy. Before them, a
    `repetition_penalty` (Keskar et al. 2019) divides the logits above zero of tokens that the text has, and multiplies
    those below; then `logit_bias` adds to the logits of ids. Raises GlgptError for values out of range.
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
        if not (isinstance(temperature, SupportsFloat) and np.isfinite(temperature) and temperature >= 0):
            raise GlgptError(f"temperature is {temperature!r}; it must be 0 (greedy) or above")
        if top_k is not None and whole("top-k", top_k) < 1:
            raise GlgptError(f"top-k is {top_k}; it must be 1 or more")
        if top_p is not None and not (isinstance(top_p, SupportsFloat) and 0 < top_p <= 1):
            raise GlgptError(f"top-p is {top_p}; it must be in (0, 1]")
        if min_p is not None and not (isinstance(min_p, SupportsFloat) and 0 <= min_p <= 1):
            raise GlgptError(f"min-p is {min_p}; it must be in [0, 1]")
        if seed is not None and whole("seed", seed) < 0:
            raise GlgptError(f"seed is {seed}; it must be 0 or above")
        penalty = 1.0 if repetition_penalty is None else repetition_penalty
        if not (isinstance(penalty, SupportsFloat) and np.isfinite(penalty) and penalty > 0):
            raise GlgptError(f"repetition penalty is {penalty!r}; it must be above 0 (1: none)")
        self.repetition_penalty = float(penalty)
        self.logit_bias = {whole("an id of logit bias", i): b for i, b in (logit_bias or {}).items()}
        for i, b in self.logit_bias.items():
            if i < 0 or not (isinstance(b, SupportsFloat) and np.isfinite(b)):
                raise GlgptError(f"logit bias of {i} is {b!r}; it must be a finite number for an id from 0")
        self.temperature, self.top_k = float(temperature), top_k
        self.top_p, self.min_p = top_p, min_p or 0.0
        self.seed = int(np.random.default_rng().integers(2**32)) if seed is None else whole("seed", seed)

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before a token is chosen, which the host then does."""
        return self.repetition_penalty != 1 or bool(self.logit_bias)

    def check_vocabulary(self, size: int) -> None:
        """Raises GlgptError where the bias names an id beyond a vocabulary of so many."""
        if (last := max(self.logit_bias, default=0)) >= size:
            raise GlgptError(f"logit bias names id {last}, and the vocabulary has {size}")

    def adjusted(self, logits: NDArray[np.floating], ids: Sequence[int]) -> NDArray[np.floating]:
        """Logits `[vocab]` behind the text `ids`, after penalty and bias."""
        if not self.adjusts:
            return logits
        found = logits.astype(np.float64)
        seen = np.unique(np.asarray(ids, np.int64))
        penalty = self.repetition_penalty
        found[seen] = np.where(found[seen] > 0, found[seen] / penalty, found[seen] * penalty)
        for i, bias in self.logit_bias.items():
            found[i] += bias
        return found

    @property
    def greedy(self) -> bool:
        """Whether the choice is always the greatest logit."""
        return self.temperature < COLDEST or self.top_k == 1

    @property
    def entry(self) -> str | None:
        """The entry that draws a token; None where the best one is there already."""
        if self.greedy:
            return None
        return SAMPLE if self.top_k is not None or self.top_p in (None, 1) else SAMPLE_NUCLEUS

    def scalars(self, step: int, vocab: int) -> dict[str, float]:
        """What that entry is told, to draw token `step` of this seed from `vocab` logits."""
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
        """The distribution `[vocab]` that a token is drawn from, of logits `[vocab]`."""
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
        """Draws token `step` of this seed from logits `[vocab]`. Raises GlgptError where they are not finite."""
        if not np.isfinite(logits).all():
            raise GlgptError(NOT_FINITE)
        if self.greedy:
            return int(np.argmax(logits))
        cumulative = np.cumsum(self.probabilities(logits))
        high, low, _, _ = hash4((draw_seed(self.seed), step & 0xFFFFFFFF, ON_HOST, 0))
        random = ((high >> 5) * 2**26 + (low >> 6)) / 2**53
        return int(np.searchsorted(cumulative, random * cumulative[-1], side="right"))


def nucleus_width(temperature: float, top_p: float, vocab: int) -> float:
    """How far below the greatest logit to search for the end of the nucleus: a power of two.

    All tokens below it together weigh less than 1 - top_p of the greatest.
    """
    return float(2.0 ** math.ceil(math.log2(temperature * math.log(2 * vocab / max(1 - top_p, 2**-24)))))
