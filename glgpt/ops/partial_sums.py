"""What ops on one row hand to each other: partial sums, a row before its norm, attention by ranges of keys."""

from __future__ import annotations

from dataclasses import dataclass

from glgpt.program.tensor import Tensor


@dataclass(frozen=True)
class PartialSums:
    """A one-row product split along K: `cols` columns of partial sums, placed in `tensor` as `defines` say."""

    tensor: Tensor
    cols: int
    defines: dict[str, int | float | str]

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
