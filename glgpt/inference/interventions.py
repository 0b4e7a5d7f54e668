"""Changing a model while it runs: switching parts off, scaling, steering, patching, other attention patterns.

An intervention names a part of the model as its activations are named (`h.3.attn`, `h.3.mlp`, `h.3`, or an activation
such as `h.3.resid_post`) and becomes `Edit`s, linear changes of activations. They are passes of a program recorded for
them, in which the edited activations stay unfused.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt import ops
from glgpt.errors import ArgumentError, GlgptError, quoted, written
from glgpt.gl.player import Player
from glgpt.inference.arguments.checks import floats, integer, items, number
from glgpt.models.network import Network
from glgpt.models.spec import FINAL_NORM, LOGITS, Activation, ModelConfig
from glgpt.program.formats import Floats
from glgpt.program.layout import Layout, fold, texels
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor

MAX_FACTOR = 3e38  # fits a float32
EDITABLE = ("rows", "heads", "pattern")  # kinds of activations; scores and caches are read where they are written


@dataclass(frozen=True, eq=False)
class Edit:
    """y = x gain + shift of an activation, on positions first .. end - 1, in the columns of its matrix.

    `gain` and `shift` are `[rows, columns]`; their rows repeat from position `first` on.
    """

    name: str
    gain: Floats
    shift: Floats
    first: int
    end: int

    @property
    def key(self) -> str:
        """The same for the same edit."""
        data = hashlib.sha256(repr((self.name, self.first, self.end, self.gain.shape, self.shift.shape)).encode())
        data.update(self.gain.tobytes())
        data.update(self.shift.tobytes())
        return data.hexdigest()


class Intervention(ABC):
    """A change of a model while it runs; see `GPT2.generate` and `GPT2.run_with_cache`."""

    @abstractmethod
    def edits(self, config: ModelConfig) -> list[Edit]:
        """What it changes in a model of this configuration. Raises GlgptError for a part that the model lacks."""


Interventions = Intervention | Iterable[Intervention]


@dataclass(frozen=True)
class Scale(Intervention):
    """Multiplies what a part adds to the residual stream, or an activation, by `factor`.

    `name` is attention (`h.3.attn`), an MLP (`h.3.mlp`), both of a block (`h.3`), or an activation; `head` takes one
    head of attention.
    """

    name: str
    factor: float
    head: int | None = None

    def edits(self, config: ModelConfig) -> list[Edit]:
        """One edit an activation."""
        found = []
        for activation in _parts(config, self.name, self.head is not None):
            ones = _natural(activation, 1.0, config)
            scaled = _of_head(activation, self.head, config)
            gain = np.where(scaled, np.float32(_factor(self.factor)), ones)
            found.append(_edit(config, activation, gain, _natural(activation, 0.0, config), 0, config.n_positions))
        return found


class Ablate(Scale):
    """Switches a part off: what it adds to the residual stream becomes zero. See `Scale`."""

    def __init__(self, name: str, head: int | None = None) -> None:
        super().__init__(name, 0.0, head)

    def __repr__(self) -> str:
        return f"Ablate({self.name!r}, head={self.head})"


@dataclass(frozen=True, eq=False)
class Steer(Intervention):
    """Adds `factor` times a direction `[width]` to every row of an activation, from position `first` on."""

    name: str
    direction: NDArray[np.floating]
    factor: float = 1.0
    first: int = 0

    def edits(self, config: ModelConfig) -> list[Edit]:
        """One edit."""
        (activation,) = _parts(config, self.name, False)
        values = floats("a direction", self.direction) * np.float32(_factor(self.factor))
        width = activation.row_width
        if activation.square or values.shape != (width,) or not np.isfinite(values).all():
            raise GlgptError(
                f"a direction of {activation.name} is {width} finite numbers; this has shape {values.shape}"
            )
        gain = _natural(activation, 1.0, config)
        return [_edit(config, activation, gain, values[None], integer("first", self.first), config.n_positions)]


@dataclass(frozen=True, eq=False)
class Patch(Intervention):
    """Replaces an activation by `values`, in its natural shape (`GPT2.run_with_cache`), from position `first` on.

    Positions beyond the values stay as they are. Of a pattern, `[n_head, T, T]`, `first` must be 0.
    """

    name: str
    values: NDArray[np.floating]
    first: int = 0

    def edits(self, config: ModelConfig) -> list[Edit]:
        """One edit."""
        (activation,) = _parts(config, self.name, False)
        values, first = floats("values", self.values), integer("first", self.first)
        shown = f"values of {activation.name} are [{activation.dims}]"
        if not np.isfinite(values).all():
            raise GlgptError(f"{shown}, all finite")
        if activation.square:
            count = values.shape[-1] if values.ndim else 0
            if values.shape != (activation.heads, count, count) or first or count > config.n_positions:
                raise GlgptError(f"{shown} from position 0 on; these have shape {values.shape}, from {first} on")
            shift = np.zeros((count * activation.heads, config.n_positions), np.float32)
            shift[:, :count] = values.transpose(1, 0, 2).reshape(-1, count)
        else:
            count, shift = len(values) if values.ndim else 0, values
            width = activation.row_width
            if values.shape != (count, width) or not count or first + count > config.n_positions:
                raise GlgptError(f"{shown} within the context; these have shape {values.shape}, from {first} on")
        gain = _natural(activation, 0.0, config)
        return [_edit(config, activation, gain, shift, first, first + count)]


@dataclass(frozen=True)
class Attend(Intervention):
    """Replaces where attention looks: `pattern` is "uniform" (all tokens so far), "previous" or "first" (token)."""

    name: str
    pattern: str
    head: int | None = None

    def edits(self, config: ModelConfig) -> list[Edit]:
        """One edit."""
        if not isinstance(self.pattern, str) or self.pattern not in ops.PATTERNS:
            raise GlgptError(f"pattern {written(self.pattern)} is not one of {', '.join(ops.PATTERNS)}")
        known = config.activations
        own = [a for a in known.values() if a.kind == "pattern" and a.name.startswith(f"{self.name}.")]
        (activation,) = own if len(own) == 1 else _parts(config, self.name, False)
        if activation.kind != "pattern":
            raise GlgptError(f"{activation.name} is no attention pattern")
        n = config.n_positions
        square = {"uniform": np.tril(np.ones((n, n))), "previous": np.eye(n, k=-1), "first": np.eye(1, n).repeat(n, 0)}
        rows = square[self.pattern]
        rows[0, 0] = 1  # the first token has itself alone
        rows = (rows / rows.sum(1, keepdims=True)).astype(np.float32)
        replaced = _of_head(activation, self.head, config)  # [heads, 1 or n]
        gain = np.where(replaced, np.float32(0), _natural(activation, 1.0, config))
        shift = np.where(replaced[None], rows[:, None], np.float32(0)).reshape(n * activation.heads, n)
        return [_edit(config, activation, gain, shift, 0, n)]


def _parts(config: ModelConfig, name: str, by_head: bool) -> list[Activation]:
    """The activations that a part's name means. Raises GlgptError for none, or one that cannot be edited."""
    known, found = config.activations, list[Activation]()
    if isinstance(name, str) and name in known:
        found = [known[name]]
    elif isinstance(name, str):
        inside = [a for a in known.values() if a.name.startswith(name + ".")]
        found = [a for a in inside if (a.kind == "heads" if by_head else a.added)]
    if not found:
        parts = dict.fromkeys(n.rpartition(".")[0] for n in known if "." in n)
        raise GlgptError(f"{quoted(name)} is not a part of this model; parts are such as {', '.join(list(parts)[:3])}")
    for a in found:
        if a.kind not in EDITABLE or a.name in (FINAL_NORM, LOGITS):
            raise GlgptError(f"{a.name} cannot be changed: change what it is made of")
        if by_head and a.kind == "rows":
            raise GlgptError(f"{a.name} has no heads")
    return found


def _of_head(activation: Activation, head: int | None, config: ModelConfig) -> NDArray[np.bool_]:
    """Where in `_natural` a head has its values; None: everywhere."""
    chosen = np.ones(_natural(activation, 0.0, config).shape, bool)
    if head is None:
        return chosen
    if integer("head", head) >= activation.heads:
        raise GlgptError(f"head {head} is not one of the {activation.heads} of {activation.name}")
    heads = np.arange(activation.heads) == head
    return heads[:, None] & chosen if activation.square else np.repeat(heads, activation.width)[None]


def _natural(activation: Activation, value: float, config: ModelConfig) -> Floats:
    """One value for each of an activation's columns, and each head's row of a pattern, without padding."""
    if activation.square:
        return np.full((activation.heads, config.n_positions), value, np.float32)
    width = activation.row_width
    return np.full((1, width), value, np.float32)


def _edit(config: ModelConfig, activation: Activation, gain: Floats, shift: Floats, first: int, end: int) -> Edit:
    if not 0 <= first < end <= config.n_positions:
        raise GlgptError(f"positions {first} to {end - 1} are not within the context of {config.n_positions}")
    gain, shift = (_padded(activation, x.astype(np.float32)) for x in (gain, shift))
    return Edit(activation.name, gain, shift, first, end)


def _padded(activation: Activation, rows: Floats) -> Floats:
    """Rows as they lie in the matrix: heads are padded to whole texels."""
    if activation.kind != "heads":
        return rows
    heads = rows.reshape(len(rows), activation.heads, activation.width)
    wide: Floats = np.pad(heads, ((0, 0), (0, 0), (0, texels(activation.width) - activation.width)))
    return wide.reshape(len(rows), -1)


def _factor(value: object) -> float:
    return number("factor", value, lambda x: abs(x) <= MAX_FACTOR, "a finite number")


class Edits:
    """Edits as a network applies them (`Network.edits`) and a player holds them."""

    def __init__(self, config: ModelConfig, interventions: Interventions) -> None:
        wanted = "an intervention (Ablate, Scale, Steer, Patch, Attend), or a list of them"
        one = isinstance(interventions, Intervention)
        given: list[Any] = [interventions] if one else items("interventions", interventions, wanted)
        if wrong := [each for each in given if not isinstance(each, Intervention)]:
            raise ArgumentError(f"interventions has {written(wrong[0])}; it must be {wanted}")
        self.list = [edit for each in given for edit in each.edits(config)]
        self.per_position = {a.name: a.heads if a.square else 1 for a in config.activations.values()}
        self.key = tuple(edit.key for edit in self.list)

    def __bool__(self) -> bool:
        return bool(self.list)

    @property
    def names(self) -> frozenset[str]:
        """The activations that are edited."""
        return frozenset(edit.name for edit in self.list)

    def apply(self, network: Network, x: Tensor) -> Tensor:
        """The activation x after its edits, in their order."""
        rec = network.rec
        for i, edit in enumerate(self.list):
            if edit.name == x.name:
                gain, shift = (
                    rec.fixed(f"edit.{i}.{part}", layout, "state") for part, layout in self._layouts(rec, edit)
                )
                x = ops.edit(rec, x, gain, shift, (edit.first, edit.end), self.per_position[edit.name])
        return x

    @staticmethod
    def _layouts(rec: Recorder, edit: Edit) -> list[tuple[str, Layout]]:
        size = rec.limits.max_texture_size
        matrices = (("gain", edit.gain), ("shift", edit.shift))
        return [(part, fold(m.shape[0], m.shape[1], size)) for part, m in matrices]

    def upload(self, player: Player) -> None:
        """Writes what the passes read."""
        views: Mapping[str, Layout] = player.program.views
        for i, edit in enumerate(self.list):
            for part, matrix in (("gain", edit.gain), ("shift", edit.shift)):
                if f"edit.{i}.{part}" in views:
                    player.write_matrix(f"edit.{i}.{part}", views[f"edit.{i}.{part}"], matrix)
