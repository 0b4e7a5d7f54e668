"""Changes of activations as linear maps, one for each position and head, and the passes that apply them.

A program is recorded for a set of `Sites`: the kinds of activations that may change, in every block. The changes
themselves (`Edits`) are uploaded to states, so that a sweep over layers, heads, positions and values plays one recorded
program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt import ops
from glgpt.gl.player import Player
from glgpt.models.activations import Activation, part_of
from glgpt.models.network import Network
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.program.layout import Layout, fold, one_layer, texels
from glgpt.program.tensor import Tensor

MIN_TABLE_ROWS = 4  # minimum rows of gains and shifts for each width: the identity and a few changes


@dataclass(frozen=True, eq=False)
class Edit:
    """The change y = x gain + shift of an activation at positions first .. end - 1 (None: to the end).

    `gain` and `shift` are `[rows, columns]` in the activation's natural columns, or `[rows, 1]` if all columns are
    alike; their rows repeat from position `first` on. In scores and patterns, whose columns are keys, each position has
    a row for each head. `patterns` replaces the pattern of each head instead: 0 leaves it unchanged, k stands for
    `ops.PATTERNS[k - 1]`.
    """

    name: str
    gain: Floats
    shift: Floats
    first: int = 0
    end: int | None = None
    patterns: tuple[int, ...] = ()


class _Changes:
    """The composition of all edits of one activation: which row of `gain` and `shift` each position and head uses."""

    def __init__(self, activation: Activation, config: ModelConfig) -> None:
        self.activation, self.columns = activation, config.context if activation.square else activation.row_width
        heads = activation.heads if activation.square else 1
        self.which = np.zeros((config.context, heads), np.int64)
        self.gain, self.shift = np.ones((1, self.columns), np.float32), np.zeros((1, self.columns), np.float32)
        self.patterns = np.zeros(activation.heads, np.int64)

    def add(self, edit: Edit) -> None:
        """Composes an edit with the earlier ones."""
        if edit.patterns:
            replaced = np.flatnonzero(edit.patterns)
            self.patterns[replaced] = np.asarray(edit.patterns)[replaced]
            self.which[:, replaced] = 0
            return
        part = self.which[edit.first : edit.end]
        if not part.size:
            return
        rows = np.arange(part.size)
        triples = np.stack([part.ravel(), rows % len(edit.gain), rows % len(edit.shift)], 1)
        distinct, inverse = np.unique(triples, axis=0, return_inverse=True)
        old, gains, shifts = distinct.T
        factor, added = (self._columns(m[i]) for m, i in ((edit.gain, gains), (edit.shift, shifts)))
        gain, shift = self.gain[old] * factor, self.shift[old] * factor + added
        numbers = len(self.gain) + np.arange(len(distinct))
        numbers[(gain == 1).all(1) & (shift == 0).all(1)] = 0
        part[:] = numbers[inverse.ravel()].reshape(part.shape)
        self.gain, self.shift = np.concatenate([self.gain, gain]), np.concatenate([self.shift, shift])

    def _columns(self, rows: Floats) -> Floats:
        """Returns rows of an edit with as many columns as the activation has here; a pattern has one per position."""
        if rows.shape[1] == 1:
            return np.broadcast_to(rows, (len(rows), self.columns))
        return np.pad(rows[:, : self.columns], ((0, 0), (0, max(0, self.columns - rows.shape[1]))))

    def padded(self, row: Floats) -> Floats:
        """Returns a row as stored in the matrix, with heads padded to whole texels."""
        heads, width = self.activation.heads, self.activation.width
        if self.activation.kind not in ("heads", "cache"):
            return row
        found: Floats = np.pad(row.reshape(heads, width), ((0, 0), (0, texels(width) - width))).ravel()
        return found


class Sites:
    """Places where a program applies edits: activations of some kinds in every block, and their current changes.

    For each of these activations, a state holds the table row of gains and shifts that each position and head uses;
    activations of equal width share a table. `rows` is the number of rows of each table, by width.
    """

    def __init__(self, config: ModelConfig, kinds: frozenset[str], rows: Mapping[int, int]) -> None:
        self.config, self.rows = config, rows
        self.activations = {name: a for name, a in config.activations.items() if part_of(name) in kinds}
        self.names = frozenset(self.activations)
        self._held: dict[str, Floats] = {}

    def apply(self, network: Network, x: Tensor, row: str | None = None) -> Tensor:
        """Returns the activation x after its edits; with `row`, x is the single row of position pos + row.

        For a state (queries, keys or values), the rows that the network has just written are changed in place.
        """
        rec, activation = network.rec, self.activations.get(x.name)
        if activation is None:
            return x
        limit = rec.limits.max_texture_size
        heads = activation.heads if activation.square else 1
        if activation.kind == "pattern":
            how = rec.fixed(f"edit.{x.name}.patterns", Layout(1, 4 * heads), "state")
            x = ops.set_pattern(rec, x, how, heads)
        table = fold(self.rows[x.cols], x.cols, limit)
        gain, shift = (rec.fixed(f"edit.{part}.{x.cols}", table, "state") for part in ("gain", "shift"))
        which = rec.fixed(f"edit.{x.name}", Layout(self.config.context, heads), "state")
        if x.role != "state":
            return ops.edit(rec, x, gain, shift, which, only_row=row)
        ops.place_rows(rec, ops.edit(rec, x, gain, shift, which, one_layer(network.length, x.cols)), x, "pos")
        return x

    def write(self, player: Player, edits: Edits) -> None:
        """Uploads the matrices of the edits that differ from those in the player's program."""
        for name, matrix in edits.states(self).items():
            held = self._held.get(name)
            if held is None or not np.array_equal(held, matrix):
                player.write_matrix(name, player.program.views[name], matrix)
                self._held[name] = matrix


class Edits:
    """The changes that interventions make in a model of this configuration, whose context is the program's."""

    def __init__(self, config: ModelConfig, edits: Iterable[Edit]) -> None:
        self.config, self._changes = config, dict[str, _Changes]()
        for edit in edits:
            if edit.name not in self._changes:
                self._changes[edit.name] = _Changes(config.activations[edit.name], config)
            self._changes[edit.name].add(edit)
        self._which: dict[str, NDArray[np.int64]] = {}
        self._tables: dict[int, list[tuple[Floats, Floats]]] = {}
        for name, changes in self._changes.items():
            self._which[name] = self._numbered(changes)

    def _numbered(self, changes: _Changes) -> NDArray[np.int64]:
        """Adds the used rows to the table of their width; returns the table row of each position and head."""
        identity = changes.padded(changes.gain[0]), changes.padded(changes.shift[0])
        table = self._tables.setdefault(len(identity[0]), [identity])
        numbers = np.zeros(len(changes.gain), np.int64)
        for i in np.unique(changes.which[changes.which > 0]):
            numbers[i] = len(table)
            table.append((changes.padded(changes.gain[i]), changes.padded(changes.shift[i])))
        return numbers[changes.which]

    def __bool__(self) -> bool:
        return bool(self._changes)

    @property
    def key(self) -> Any:
        """A hashable key, equal for all edits that one program can make."""
        return self._kinds, tuple(sorted(self._rows.items())), self.config.context

    @property
    def _kinds(self) -> frozenset[str]:
        return frozenset(map(part_of, self._changes))

    @property
    def _rows(self) -> dict[int, int]:
        """Rows of each table: a power of two, so that few different sizes are recorded."""
        return {width: max(MIN_TABLE_ROWS, 1 << (len(t) - 1).bit_length()) for width, t in self._tables.items()}

    def sites(self) -> Sites:
        """Returns the sites that a program must be recorded for."""
        return Sites(self.config, self._kinds, self._rows)

    def states(self, sites: Sites) -> dict[str, Floats]:
        """Returns the matrix of every state of these sites, by name."""
        found: dict[str, Floats] = {}
        for width, rows in sites.rows.items():
            for i, part in enumerate(("gain", "shift")):
                matrix = np.zeros((rows, width), np.float32)
                matrix[: len(self._tables[width])] = [row[i] for row in self._tables[width]]
                found[f"edit.{part}.{width}"] = matrix
        for name, activation in sites.activations.items():
            heads = activation.heads if activation.square else 1
            which = self._which.get(name, np.zeros((self.config.context, heads), np.int64))
            found[f"edit.{name}"] = which.astype(np.float32)
            if activation.kind == "pattern":
                how = np.zeros((1, 4 * heads), np.float32)
                how[0, ::4] = self._changes[name].patterns if name in self._changes else 0
                found[f"edit.{name}.patterns"] = how
        return found
