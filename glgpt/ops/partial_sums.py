"""What ops on one row, or on a few, hand to each other: partial sums, rows before a norm, ranges of keys, positions."""

from __future__ import annotations

from dataclasses import dataclass

from glgpt.program.tensor import Tensor


@dataclass(frozen=True)
class PartialSums:
    """A product of few rows split along K: `cols` columns of partial sums, placed in `tensor` as `defines` say."""

    tensor: Tensor
    cols: int
    defines: dict[str, int | float | str]
    rows: int = 1

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The sampler that `partial_sums.glsl` reads."""
        return {"partial_sums": self.tensor}


@dataclass(frozen=True)
class NormedRow:
    """One row before its norm, for a product that applies the norm afterwards (`norm_fold`, `combine`).

    `x` is the row, `scaled` the row times the norm's gain, both `[1, C]`; `moments` those of slices of the row.
    """

    x: Tensor
    scaled: Tensor
    moments: Tensor
    eps: float


# A row and its norm's gain and bias folded into the weight that it was multiplied with; None: an RMS norm.
Normed = tuple[NormedRow, tuple[Tensor, Tensor] | None]


@dataclass(frozen=True)
class AttendedRow:
    """One row of attention by ranges of `keys` keys: `values` `[ranges, n_head * d]`, `logs` how to weigh each."""

    values: Tensor
    logs: Tensor
    keys: int

    @property
    def cols(self) -> int:
        """Columns of the row."""
        return self.values.cols


Row = Tensor | AttendedRow  # what a product of one row takes


@dataclass(frozen=True)
class Rows:
    """Several texts that are decoded side by side, each at a position of its own, over caches that they share.

    `size` of them. `places` `[size, 4]` holds (position, ..) of each, `table` `[size, context]` for every position
    the row of the caches that holds its key and value. The runtime scalar `row` is the first of the `size` rows of the
    caches that the new tokens are written to.
    """

    size: int
    places: Tensor
    table: Tensor


def each_row(rows: int) -> dict[str, int | float | str]:
    """Which row a fragment finishes, for `partial_sums.glsl` and `folded_norm.glsl`, where there are several."""
    return {"BATCH_ROW": "int(gl_FragCoord.y)"} if rows > 1 else {}


EACH_NEW_ROW: dict[str, int | float | str] = {"BATCH_ROW": "(int(gl_FragCoord.y) - row)"}  # in the caches
