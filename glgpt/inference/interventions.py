"""Defines interventions on a running model: ablate or scale parts, steer, patch, replace attention patterns.

An intervention names an activation (`h.3.resid_post`) or a part of the model (`h.3.attn`, `h.3.mlp`, `h.3`). The name
of a part is the beginning of the names of its activations. The intervention is converted to `Edit`s. While a program
runs, an `Edit` multiplies an activation by a gain and adds a shift, or replaces attention patterns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt import ops
from glgpt.errors import ArgumentError, GlgptError, quoted, written
from glgpt.inference.arguments.checks import floats, integer, items, number
from glgpt.inference.edits import Edit, Edits
from glgpt.models.activations import PATTERN, Activation, in_block
from glgpt.models.spec import ModelConfig

MAX_FACTOR = 3e38  # fits into a float32
PER_HEAD = ("heads", "cache", "scores", "pattern")  # kinds of activations that consist of heads


class Intervention(ABC):
    """A change of a model while it runs; see `generate` and `run_with_cache` of `glgpt.LanguageModel`."""

    @abstractmethod
    def edits(self, config: ModelConfig) -> list[Edit]:
        """Returns the edits for a model of this configuration. Raises GlgptError for a part that the model lacks."""


Interventions = Intervention | Iterable[Intervention]


@dataclass(frozen=True)
class Scale(Intervention):
    """Multiplies an activation, or a part's contribution to the residual stream, by `factor`.

    `name` is the attention of a block (`h.3.attn`), its MLP (`h.3.mlp`), both (`h.3`), or an activation; `head` selects
    one attention head.
    """

    name: str
    factor: float
    head: int | None = None

    def edits(self, config: ModelConfig) -> list[Edit]:
        """Returns one edit for each activation that `name` selects."""
        found = []
        for activation in _parts(config, self.name, self.head is not None):
            gain = np.where(_of_head(activation, self.head), np.float32(_factor(self.factor)), np.float32(1))
            found.append(Edit(activation.name, gain, np.zeros((1, 1), np.float32)))
        return found


class Ablate(Scale):
    """Sets an activation, or a part's contribution to the residual stream, to zero. See `Scale`."""

    def __init__(self, name: str, head: int | None = None) -> None:
        super().__init__(name, 0.0, head)

    def __repr__(self) -> str:
        return f"Ablate({self.name!r}, head={self.head})"


@dataclass(frozen=True, eq=False)
class Steer(Intervention):
    """Adds `factor` times a direction `[width]` to an activation at each position from `first` on.

    For queries the direction is `[n_head, d_head]`; for keys and values it is `[n_kv_head, d_head]`.
    """

    name: str
    direction: NDArray[np.floating]
    factor: float = 1.0
    first: int = 0

    def edits(self, config: ModelConfig) -> list[Edit]:
        """Returns one edit."""
        activation = _one(config, self.name)
        values = floats("a direction", self.direction) * np.float32(_factor(self.factor))
        first = integer("first", self.first)
        shape = (activation.heads, activation.width) if activation.kind == "cache" else (activation.row_width,)
        if activation.square or values.shape != shape or not np.isfinite(values).all():
            wanted = f"{' x '.join(map(str, shape))} finite numbers"
            raise GlgptError(f"a direction of {activation.name} must be {wanted}; this one has shape {values.shape}")
        _check_positions(config, first, first + 1)
        return [Edit(activation.name, np.ones((1, 1), np.float32), values.reshape(1, -1), first)]


@dataclass(frozen=True, eq=False)
class Patch(Intervention):
    """Replaces an activation by `values` of its natural shape (see `run_with_cache`), from position `first` on.

    Positions after the values are unchanged. For scores and patterns, whose shape is `[n_head, T, T]`, `first` must be
    0; scores of keys to which a token does not attend are ignored.
    """

    name: str
    values: NDArray[np.floating]
    first: int = 0

    def edits(self, config: ModelConfig) -> list[Edit]:
        """Returns one edit."""
        activation = _one(config, self.name)
        values, first = floats("values", self.values), integer("first", self.first)
        count = values.shape[-2] if activation.per_head and values.ndim == 3 else len(values) if values.ndim else 0
        shown = f"values of {activation.name} are [{activation.dims}]"
        if values.shape != activation.shape(count) or not count or (activation.square and first):
            raise GlgptError(f"{shown}; these have shape {values.shape}, from position {first} on")
        _check_positions(config, first, first + count)
        if activation.kind == "scores":
            values = np.where(activation.attended(0, count, count), values, np.float32(0))
        if not np.isfinite(values).all():
            raise GlgptError(f"{shown} and must be finite; these are not")
        rows = values.transpose(1, 0, 2) if activation.per_head else values
        shift = rows.reshape(-1, count if activation.square else activation.row_width)
        return [Edit(activation.name, np.zeros((1, 1), np.float32), shift, first, first + count)]


@dataclass(frozen=True)
class Attend(Intervention):
    """Replaces an attention pattern by `pattern`.

    `name` is a pattern (`h.3.attn.pattern`) or the attention of a block (`h.3.attn`); `head` selects one head (None:
    all). "uniform" attends to all tokens so far equally, "previous" attends to the previous token, and "first" attends
    to the first token.
    """

    name: str
    pattern: str
    head: int | None = None

    def edits(self, config: ModelConfig) -> list[Edit]:
        """Returns one edit."""
        if not isinstance(self.pattern, str) or self.pattern not in ops.PATTERNS:
            raise GlgptError(f"pattern {written(self.pattern)} is not one of {', '.join(ops.PATTERNS)}")
        known = config.activations
        own = [a for a in known.values() if a.kind == "pattern" and a.name.startswith(f"{self.name}.")]
        activation = own[0] if len(own) == 1 else _one(config, self.name)
        if activation.kind != "pattern":
            raise GlgptError(f"{activation.name} is not an attention pattern; name one such as {in_block(0, PATTERN)}")
        number = 1 + ops.PATTERNS.index(self.pattern)
        patterns = tuple(number if chosen else 0 for chosen in _of_head(activation, self.head)[:, 0])
        plain = np.ones((1, 1), np.float32)
        return [Edit(activation.name, plain, 0 * plain, patterns=patterns)]


def edits_of(config: ModelConfig, interventions: Interventions) -> Edits:
    """Returns the edits of all interventions, composed in order, for programs whose context is `config.context`.

    Raises GlgptError if an item is not an intervention, and for a part that the model lacks.
    """
    wanted = "an intervention (Ablate, Scale, Steer, Patch, Attend), or a list of them"
    one = isinstance(interventions, Intervention)
    given: list[Any] = [interventions] if one else items("interventions", interventions, wanted)
    if wrong := [each for each in given if not isinstance(each, Intervention)]:
        raise ArgumentError(f"interventions has {written(wrong[0])}; it must be {wanted}")
    return Edits(config, [edit for intervention in given for edit in intervention.edits(config)])


def _factor(value: object) -> float:
    return number("factor", value, lambda x: abs(x) <= MAX_FACTOR, "a finite number")


def _parts(config: ModelConfig, name: str, by_head: bool) -> list[Activation]:
    """Returns the activation with this name, or the activations of the part with this name.

    For a part, returns its contributions to the residual stream, or, with `by_head`, its activations of kind `heads`.
    Raises GlgptError if no activation is found, or if `by_head` is True and a found activation has no heads.
    """
    known, found = config.activations, list[Activation]()
    if isinstance(name, str) and name in known:
        found = [known[name]]
    elif isinstance(name, str):
        inside = [a for a in known.values() if a.name.startswith(name + ".")]
        found = [a for a in inside if (a.kind == "heads" if by_head else a.added)]
    if not found:
        parts = dict.fromkeys(n.rpartition(".")[0] for n in known if "." in n)
        raise GlgptError(f"{quoted(name)} is not a part of this model; parts include {', '.join(list(parts)[:3])}")
    for a in found:
        if by_head and a.kind not in PER_HEAD:
            raise GlgptError(f"{a.name} has no heads; omit head")
    return found


def _one(config: ModelConfig, name: str) -> Activation:
    """Returns the only activation of this name or part. Raises GlgptError if there are none or several."""
    found = _parts(config, name, False)
    if len(found) > 1:
        raise GlgptError(f"{quoted(name)} has several activations; name one: {', '.join(a.name for a in found)}")
    return found[0]


def _of_head(activation: Activation, head: int | None) -> NDArray[np.bool_]:
    """Returns a mask, shaped like an `Edit`'s gain, that selects the values of a head (None: of all heads)."""
    if head is not None and integer("head", head) >= activation.heads:
        raise GlgptError(f"head {head} is not one of the {activation.heads} of {activation.name}")
    chosen = np.ones(activation.heads, bool) if head is None else np.arange(activation.heads) == head
    if activation.square:
        return chosen[:, None]
    return np.repeat(chosen, activation.row_width // activation.heads)[None]


def _check_positions(config: ModelConfig, first: int, end: int) -> None:
    """Raises GlgptError for positions that the model does not have."""
    if not 0 <= first < end <= config.n_positions:
        have = f"within the model's {config.n_positions} positions"
        raise GlgptError(f"positions {first} to {end - 1} are not {have}")
