"""Samples tokens: computes the scalars (parameters of passes) for sampling on the device, and samples on the host.

The device draws tokens (`ops.sample`) among a limited number of candidates. If these do not suffice, the device marks
the draw as undecided, and `Sampler.choose` draws the token on the host, from all logits, in float64.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.constraints.constraint import ConstraintError
from glgpt.inference.constraints.matcher import Matcher

NOT_FINITE = "the model's logits are not finite; its weights overflow this dtype (try --dtype f32)"
SAMPLE, SAMPLE_NUCLEUS = "sample", "sample_nucleus"
SAMPLING = (SAMPLE, SAMPLE_NUCLEUS)  # entries (named lists of passes) that draw a token
MIN_TEMPERATURE = 1e-30  # below this temperature, float32 sampling is greedy
MAX_MARGIN = 3e38  # a margin (maximum distance from the largest logit) that excludes no logit
# Top-p is multiplied by this factor, and the margin of min-p is divided by it. A value that equals a limit then still
# reaches the limit after rounding to float32.
REACHED = 1 - 2.0**-22
ON_HOST = 0xD1CE  # an input of the hash that makes the host's random numbers differ from the device's


def hash4(v: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Hashes four 32-bit numbers to four others, as `glsl/hash.glsl` does (pcg4d, Jarzynski & Olano 2020)."""
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
    """Returns a 32-bit seed for drawing tokens, computed from all bits of `seed`, which may have more than 32."""
    found = 0
    while seed:
        found = (found * 0x9E3779B1 + seed) & 0xFFFFFFFF if found else seed & 0xFFFFFFFF
        seed >>= 32
    return found


class Sampler:
    """Chooses tokens with the given `SamplingOptions`; draws a seed if the options have none.

    If the options have a constraint, `matcher` tracks the text: a decoder passes each chosen token to `matcher.accept`.
    `error` is the error that ended the text in a batch, if any.
    """

    def __init__(self, options: SamplingOptions, matcher: Matcher | None = None) -> None:
        self.options, self.matcher = options.seeded(), matcher
        self.error: GlgptError | None = None
        self.temperature, self.top_k, self.top_p = options.temperature, options.top_k, options.top_p
        self.min_p = options.min_p or 0.0
        self.seed = self.options.seed or 0
        self.repetition_penalty = 1.0 if options.repetition_penalty is None else options.repetition_penalty
        self.logit_bias = options.logit_bias or {}
        self._forbidden = [i for i, bias in self.logit_bias.items() if bias == -math.inf]

    @property
    def adjusts(self) -> bool:
        """True if a penalty or a bias changes the logits; the host then chooses the tokens."""
        return self.options.adjusts

    def adjusted(self, logits: NDArray[np.floating], ids: Sequence[int]) -> NDArray[np.floating]:
        """Returns the logits `[vocab]` of the token after the text `ids`, with penalty, bias and constraint applied.

        Raises GlgptError if the model's logits are not finite, and ConstraintError if the bias forbids all tokens that
        the constraint allows. Without penalty, bias and constraint, returns the logits unchecked.
        """
        if not self.adjusts and not self.matcher:
            return logits
        check_finite(logits)
        found = logits.astype(np.float64)
        if self.matcher:
            found[~self.matcher.allowed] = -np.inf
        if not self.adjusts:
            return found
        seen = np.unique(np.asarray(ids, np.int64))
        penalty = self.repetition_penalty
        found[seen] = np.where(found[seen] > 0, found[seen] / penalty, found[seen] * penalty)
        for i, bias in self.logit_bias.items():
            found[i] += bias
        if self.matcher and not np.isfinite(found).any():
            raise ConstraintError("logit bias forbids all tokens that the constraint allows next; change one of them")
        return found

    @property
    def greedy(self) -> bool:
        """True if the token with the largest logit is always chosen."""
        return self.temperature < MIN_TEMPERATURE or self.top_k == 1

    @property
    def entry(self) -> str | None:
        """Name of the entry that draws a token; None if greedy: the state `token` already holds the likeliest token."""
        if self.greedy:
            return None
        return SAMPLE if self.top_k is not None or self.top_p in (None, 1) else SAMPLE_NUCLEUS

    def scalars(self, step: int, vocab: int) -> dict[str, float]:
        """Returns the scalars with which `entry` draws a token from `vocab` logits, after `step` earlier draws."""
        k, p, temperature = self.top_k or 0, 1.0 if self.top_p is None else float(self.top_p), self.temperature
        if k and self.matcher:
            k = min(k, int(self.matcher.allowed.sum()))  # `ops.sample` requires at least k allowed tokens
        seed = draw_seed(self.seed)
        return {
            "draw_seed": seed - (seed >> 31 << 32),  # the same 32 bits as a signed number
            "draw_step": step,
            "inverse_temperature": 1 / temperature,
            "margin": min(MAX_MARGIN, temperature * -math.log(self.min_p) / REACHED) if self.min_p else MAX_MARGIN,
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
        weights[weights < self.min_p] = 0  # the weight of the best token is 1
        out = np.zeros(len(logits))
        out[order] = weights / weights.sum()
        return out

    def choose(self, logits: NDArray[np.floating], step: int = 0) -> int:
        """Draws a token from logits `[vocab]`; `step` is the number of tokens that were drawn before.

        Raises GlgptError if a logit is not finite, except -inf for tokens that the bias or the constraint forbids.
        """
        if self.matcher:
            check_finite(logits[logits != -np.inf])
        else:
            check_finite(np.delete(logits, self._forbidden) if self._forbidden else logits)
        if self.greedy:
            return int(np.argmax(logits))
        cumulative = np.cumsum(self.probabilities(logits))
        high, low, _, _ = hash4((draw_seed(self.seed), step & 0xFFFFFFFF, ON_HOST, 0))
        random = ((high >> 5) * 2**26 + (low >> 6)) / 2**53
        return int(np.searchsorted(cumulative, random * cumulative[-1], side="right"))


@contextlib.contextmanager
def recorded(sampler: Sampler, found: list[int | None], row: int) -> Iterator[None]:
    """Catches a GlgptError, so that other texts can continue: sets `sampler.error`, and `found[row]` to None."""
    try:
        yield
    except GlgptError as error:
        found[row], sampler.error = None, error


def check_finite(logits: NDArray[np.floating]) -> None:
    """Raises GlgptError if a logit is NaN or infinite."""
    if not np.isfinite(logits).all():
        raise GlgptError(NOT_FINITE)


def nucleus_width(temperature: float, top_p: float, vocab: int) -> float:
    """Returns how far below the largest logit to search for the end of the nucleus; the distance is a power of two.

    The nucleus is the shortest list of likeliest tokens whose probabilities add up to top_p. Beyond the
    returned distance, all tokens together are less than 1 - top_p times as likely as the likeliest token.
    """
    return float(2.0 ** math.ceil(math.log2(temperature * math.log(2 * vocab / max(1 - top_p, 2**-24)))))
