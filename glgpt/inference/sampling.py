"""Choosing a token from one row of logits."""

from __future__ import annotations

import operator
from typing import SupportsFloat, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError

NOT_FINITE = "the model's logits are not finite; its weights overflow this dtype (try --dtype f32)"


def whole(name: str, value: SupportsIndex) -> int:
    """The value as an int. Raises GlgptError, with its name, for what is no whole number."""
    try:
        return operator.index(value)
    except TypeError:
        raise GlgptError(f"{name} is {value!r}; it must be a whole number") from None


class Sampler:
    """Temperature, top-k and nucleus (top-p, Holtzman et al. 2020) sampling; the same seed gives the same choices.

    Temperature 0 is greedy. Raises GlgptError for values out of range.
    """

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> None:
        if not (isinstance(temperature, SupportsFloat) and np.isfinite(temperature) and temperature >= 0):
            raise GlgptError(f"temperature is {temperature!r}; it must be 0 (greedy) or above")
        if top_k is not None and whole("top-k", top_k) < 1:
            raise GlgptError(f"top-k is {top_k}; it must be 1 or more")
        if top_p is not None and not (isinstance(top_p, SupportsFloat) and 0 < top_p <= 1):
            raise GlgptError(f"top-p is {top_p}; it must be in (0, 1]")
        if seed is not None and whole("seed", seed) < 0:
            raise GlgptError(f"seed is {seed}; it must be 0 or above")
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self._random = np.random.Generator(np.random.PCG64(seed))

    @property
    def greedy(self) -> bool:
        """Whether the choice is always the greatest logit."""
        return self.temperature == 0 or self.top_k == 1

    def probabilities(self, logits: NDArray[np.floating]) -> NDArray[np.float64]:
        """The distribution `[vocab]` that a token is drawn from, of logits `[vocab]`."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            scaled = logits.astype(np.float64) / self.temperature
        if self.greedy or not np.isfinite(scaled).all():  # so small a temperature leaves but one
            certain = np.zeros(len(logits))
            certain[int(np.argmax(logits))] = 1.0
            return certain
        order = np.argsort(-scaled, kind="stable")[: self.top_k]
        p = np.exp(scaled[order] - scaled[order[0]])
        p /= p.sum()
        if self.top_p is not None:  # the shortest list of best tokens that reaches top_p
            p[int(np.searchsorted(np.cumsum(p), self.top_p)) + 1 :] = 0
            p /= p.sum()
        out = np.zeros(len(logits))
        out[order] = p
        return out

    def choose(self, logits: NDArray[np.floating]) -> int:
        """Draws a token from logits `[vocab]`. Raises GlgptError where they are not finite."""
        if not np.isfinite(logits).all():
            raise GlgptError(NOT_FINITE)
        if self.greedy:
            return int(np.argmax(logits))
        cumulative = np.cumsum(self.probabilities(logits))
        return int(np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right"))
