"""Expresses changes of activations as gains and shifts for each position and head, and records the passes for them.

A program is recorded for a set of `Sites`: the kinds of activations that may change, in every block. The changes
themselves (`Edits`) are uploaded to states, which are textures that the program reads. A sweep over blocks, heads,
positions and values can therefore play one recorded program.
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

MIN_TABLE_ROWS = 4  # minimum number of rows in a table of gains and shifts: the identity and up to three changes


@dataclass(frozen=True, eq=False)
class Edit:
    """Replaces an activation x by y = x * gain + shift at positions first .. end - 1 (end None: to the last position).

    `gain` and `shift` are `[rows, columns]`, with the columns of the activation without padding, or `[rows, 1]` if all
    columns change alike. Position `first` uses row 0, the next position uses row 1, and so on; after the last row, row
    0 is used again. In scores and patterns, a column is a key, and each position uses as many consecutive rows as there
    are heads, one for each head.

    If `patterns` is not empty, the edit replaces attention patterns and ignores `gain` and `shift`. `patterns` has a
    number for each head: 0 leaves the head's pattern unchanged, and k selects `ops.PATTERNS[k - 1]`.
    """

    name: str
    gain: Floats
    shift: Floats
    first: int = 0
    end: int | None = None
    patterns: tuple[int, ...] = ()


class _Changes:
    """Composes all edits of one activation; `which[position, head]` is the row of `gain` and `shift` to apply."""

    def __init__(self, activation: Activation, config: ModelConfig) -> None:
        self.activation, self.columns = activation, config.context if activation.square else activation.row_width
        heads = activation.heads if activation.square else 1
        self.which = np.zeros((config.context, heads), np.int64)
        self.gain, self.shift = np.ones((1, self.columns), np.float32), np.zeros((1, self.columns), np.float32)
        self.patterns = np.zeros(activation.heads, np.int64)

    def add(self, edit: Edit) -> None:
        """Adds an edit, which applies after the earlier ones."""
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
        """Returns an edit's rows with `self.columns` columns: repeats a single column; otherwise truncates or pads."""
        if rows.shape[1] == 1:
            return np.broadcast_to(rows, (len(rows), self.columns))
        return np.pad(rows[:, : self.columns], ((0, 0), (0, max(0, self.columns - rows.shape[1]))))

    def padded(self, row: Floats) -> Floats:
        """Returns a row as a table stores it, with each head padded to whole texels (of four values)."""
        heads, width = self.activation.heads, self.activation.width
        if self.activation.kind not in ("heads", "cache"):
            return row
        found: Floats = np.pad(row.reshape(heads, width), ((0, 0), (0, texels(width) - width))).ravel()
        return found


class Sites:
    """The activations that a program can edit: those of `kinds`, such as `attn.pattern`, in every block.

    Tables hold rows of gains and shifts; activations of equal width share a table. For each activation, a state holds
    the number of the table row that each position and head uses. `rows[width]` is the number of rows of the table for
    activations of that width.
    """

    def __init__(self, config: ModelConfig, kinds: frozenset[str], rows: Mapping[int, int]) -> None:
        self.config, self.rows = config, rows
        self.activations = {name: a for name, a in config.activations.items() if part_of(name) in kinds}
        self.names = frozenset(self.activations)
        self._held: dict[str, Floats] = {}

    def apply(self, network: Network, x: Tensor, row: str | None = None) -> Tensor:
        """Records the passes that edit the activation x; returns the edited activation.

        With `row`, x has only the row of position `pos` + `row`; `row` is the name of a scalar of the entry, or a
        constant. If x is a state (queries, keys or values), only the rows that the network has just written are
        changed, in place.
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
            return ops.edit(rec, x, gain, shift, which, only_row=row, scores=activation.kind == "scores")
        ops.place_rows(rec, ops.edit(rec, x, gain, shift, which, one_layer(network.length, x.cols)), x, "pos")
        return x

    def write(self, player: Player, edits: Edits) -> None:
        """Uploads the matrices of the edits, except those that are equal to the last uploaded ones."""
        for name, matrix in edits.states(self).items():
            held = self._held.get(name)
            if held is None or not np.array_equal(held, matrix):
                player.write_matrix(name, player.program.views[name], matrix)
                self._held[name] = matrix


class Edits:
    """All edits of a model; `config.context` must equal the context of the program that applies them."""

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
        """Adds the rows in use to the table of their width; returns the table row of each position and head."""
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
        """A hashable key: two `Edits` with equal keys can use the same program."""
        return self._kinds, tuple(sorted(self._rows.items())), self.config.context

    @property
    def _kinds(self) -> frozenset[str]:
        return frozenset(map(part_of, self._changes))

    @property
    def _rows(self) -> dict[int, int]:
        """Number of rows of each table, by width; a power of two, so that more `Edits` can share a program."""
        return {width: max(MIN_TABLE_ROWS, 1 << (len(t) - 1).bit_length()) for width, t in self._tables.items()}

    def sites(self) -> Sites:
        """Returns the sites that a program must be recorded for."""
        return Sites(self.config, self._kinds, self._rows)

    def states(self, sites: Sites) -> dict[str, Floats]:
        """Returns the matrix to upload to each state of these sites, by the name of the state."""
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
