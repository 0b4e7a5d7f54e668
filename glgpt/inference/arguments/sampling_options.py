"""Defines the settings of sampling (`SamplingOptions`), and the types of the keyword arguments that set them."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, TypedDict

from glgpt import ops
from glgpt.errors import ArgumentError, written
from glgpt.inference.arguments.checks import integer, number, real
from glgpt.inference.constraints.constraint import Constraint

MAX_SEED = 2**128 - 1
MIN_PENALTY, MAX_PENALTY = 1e-30, 1e30  # a float32 logit times or divided by these fits into a float64
MAX_BIAS = 3e38


class BatchSamplingKeywords(TypedDict, total=False):
    """The sampling keywords of `generate_batch`: the fields of `SamplingOptions` without the seed."""

    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    constraint: Constraint | None


class SamplingKeywords(BatchSamplingKeywords, total=False):
    """The sampling keywords of `generate` and `generate_ids`: the fields of `SamplingOptions`."""

    seed: int | None


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """The settings for choosing the next token. Raises ArgumentError for values of the wrong type or out of range.

    Temperature 0 is greedy; `top_p` 0 sets temperature 0. Three filters apply in this order, each to the tokens that
    the previous filter leaves: `top_k` keeps the k likeliest tokens, `top_p` keeps the likeliest tokens that together
    reach probability p (Holtzman et al. 2020), and `min_p` keeps the tokens that are at least min_p times as likely as
    the likeliest (Nguyen et al. 2024). Three other settings apply before the filters. A `constraint` removes the tokens
    after which the text could no longer match the constraint. A `repetition_penalty` above 1 makes tokens that are
    already in the text less likely (Keskar et al. 2019). `logit_bias` maps ids to numbers, which are added to the
    logits of the ids; -inf forbids an id. None switches a filter or the penalty off. The same `seed` gives the same
    choices; without a seed, a new one is drawn.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    constraint: Constraint | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        """Checks the values and converts them to Python's built-in types."""
        checked: dict[str, Any] = {
            "temperature": number(
                "temperature",
                self.temperature,
                lambda x: 0 <= x <= ops.MAX_TEMPERATURE,
                f"a number from 0 (greedy) to {ops.MAX_TEMPERATURE:g}",
            )
        }
        if self.top_k is not None:
            checked["top_k"] = integer("top-k", self.top_k, 1)
        if self.top_p is not None:
            top_p = number("top-p", self.top_p, lambda x: 0 <= x <= 1, "a number from 0 (greedy) to 1")
            checked |= {"top_p": top_p} if top_p else {"top_p": None, "temperature": 0.0}
        if self.min_p is not None:
            checked["min_p"] = number("min-p", self.min_p, lambda x: 0 <= x <= 1, "a number from 0 to 1")
        if self.seed is not None:
            checked["seed"] = integer("seed", self.seed, 0, MAX_SEED)
        if self.repetition_penalty is not None:
            allowed = f"from {MIN_PENALTY:g} to {MAX_PENALTY:g} (1: none)"
            checked["repetition_penalty"] = number(
                "repetition penalty", self.repetition_penalty, lambda x: MIN_PENALTY <= x <= MAX_PENALTY, allowed
            )
        if self.constraint is not None and not isinstance(self.constraint, Constraint):
            what = "a glgpt.Constraint, such as glgpt.Constraint.json_object()"
            raise ArgumentError(f"constraint is {written(self.constraint)}; it must be {what}")
        if self.logit_bias is not None:
            checked["logit_bias"] = _biases(self.logit_bias)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_keywords(cls, given: Mapping[str, Any], others: Sequence[str]) -> SamplingOptions:
        """Returns the options in a call's keyword arguments; `others` are the names of the call's other arguments.

        Raises ArgumentError for an unknown keyword. A call with an argument `seeds` takes no `seed`.
        """
        known = [f.name for f in fields(cls) if f.name != "seed" or "seeds" not in others]
        if unknown := [name for name in given if name not in known]:
            options = [*known, *others]
            close = get_close_matches(unknown[0], options, 1)
            hint = f"did you mean {close[0]}?" if close else f"the options are {', '.join(options)}"
            raise ArgumentError(f"{written(unknown[0])} is not an option of generating text; {hint}")
        return cls(**given)

    @property
    def adjusts(self) -> bool:
        """True if a penalty or a bias changes the logits; the host then chooses the tokens."""
        return self.repetition_penalty not in (None, 1) or bool(self.logit_bias)

    def seeded(self) -> SamplingOptions:
        """Returns these options, or, if they have no seed, a copy with a new seed."""
        return self if self.seed is not None else replace(self, seed=secrets.randbelow(2**32))

    def check_vocabulary(self, size: int) -> None:
        """Raises ArgumentError if the bias names an id outside a vocabulary of `size` ids, or forbids all ids."""
        biases = self.logit_bias or {}
        if (last := max(biases, default=0)) >= size:
            raise ArgumentError(f"logit bias names id {last}, and the vocabulary has {size} ids")
        if sum(bias == -math.inf for bias in biases.values()) == size:
            raise ArgumentError(f"logit bias forbids all {size} tokens of the vocabulary; leave at least one")


def _biases(given: Any) -> dict[int, float]:
    """Returns the biases by id. Raises ArgumentError for a wrong type, negative ids, and biases out of range."""
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
