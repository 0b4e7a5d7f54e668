"""Intermediate values of ops on one or a few rows: partial sums, rows before a norm, ranges of keys, positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glgpt.program.tensor import Tensor


@dataclass(frozen=True)
class PartialSums:
    """A product of few rows, split along K: `cols` columns of partial sums in `tensor`, placed as `defines` say."""

    tensor: Tensor
    cols: int
    defines: dict[str, int | float | str]
    rows: int = 1
    bias: Tensor | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Returns the samplers that `partial_sums.glsl` and the op that finishes the sums read."""
        return {"partial_sums": self.tensor} | ({"shift": self.bias} if self.bias else {})

    @property
    def second(self) -> dict[str, Tensor]:
        """Returns the samplers with which `finished_sum.glsl` reads it as the second product of a row."""
        return {"second_sums": self.tensor} | ({"second_shift": self.bias} if self.bias else {})

    def plus(self, bias: Tensor | None) -> PartialSums:
        """Returns the product of a linear layer with this bias `[1, N]`, which the op that finishes the sums adds."""
        return replace(self, bias=bias)


@dataclass(frozen=True)
class NormedRow:
    """A row before its norm, for a product that applies the norm afterwards (`norm_fold`, `combine`).

    `x` is the row and `scaled` the row times the norm's gain, both `[1, C]`; `moments` are those of slices of the row.
    """

    x: Tensor
    scaled: Tensor
    moments: Tensor
    eps: float


# A row, and its norm's gain and bias folded into the weight that the row is multiplied with (None: an RMS norm).
Normed = tuple[NormedRow, tuple[Tensor, Tensor] | None]


@dataclass(frozen=True)
class AttendedRow:
    """The attention of one row in ranges of `keys` keys, not yet combined.

    `values` `[ranges, n_head * d]` holds the result of each range, `logs` the logarithm of its summed exponentials.
    """

    values: Tensor
    logs: Tensor
    keys: int

    @property
    def cols(self) -> int:
        """Returns the number of columns of the row."""
        return self.values.cols


Row = Tensor | AttendedRow  # the input of a one-row product


@dataclass(frozen=True)
class Rows:
    """A batch of `size` texts that are decoded together, each at its own position, with shared key and value caches.

    `places` `[size, 4]` holds (position, ..) of each text. `table` `[size, context]` holds, for every position, the row
    of the caches with its key and value. The new tokens are written to `size` rows of the caches; the runtime scalar
    `row` is the first of them.
    """

    size: int
    places: Tensor
    table: Tensor


def each_row(rows: int) -> dict[str, int | float | str]:
    """Returns the define for the row that a fragment finishes (`partial_sums.glsl`, `folded_norm.glsl`), if several."""
    return {"BATCH_ROW": "int(gl_FragCoord.y)"} if rows > 1 else {}


EACH_NEW_ROW: dict[str, int | float | str] = {"BATCH_ROW": "(int(gl_FragCoord.y) - row)"}  # when writing to the caches
