"""Intermediate values of ops on one or a few rows: partial sums, rows before a norm, ranges of keys, positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glgpt.program.layout import Layout
from glgpt.program.tensor import Tensor

Defines = dict[str, int | float | str]


@dataclass(frozen=True)
class PartialSums:
    """A product of few rows, split along K: `cols` columns of partial sums in `tensor`, placed as `defines` say."""

    tensor: Tensor
    cols: int
    defines: dict[str, int | float | str]
    rows: int = 1
    bias: Tensor | None = None
    # Pixel column at which it begins: after other products, or after pixels that are not drawn.
    first: int | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Returns the samplers that `partial_sums.glsl` and the op that finishes the sums read."""
        return {"partial_sums": self.tensor} | ({"shift": self.bias} if self.bias else {})

    @property
    def second(self) -> dict[str, Tensor]:
        """Returns the samplers with which `finished_sum.glsl` reads it as the second product of a row."""
        return {"second_sums": self.tensor} | ({"second_shift": self.bias} if self.bias else {})

    @property
    def at(self) -> Defines:
        """The defines of `partial_sums.glsl`."""
        return self.defines | ({"SUMS_FIRST": self.first} if self.first is not None else {})

    @property
    def second_at(self) -> Defines:
        """The defines with which `finished_sum.glsl` finds it as the second product of a row."""
        return {"SECOND_FIRST": self.first} if self.first is not None else {}

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


@dataclass(frozen=True)
class Pixels:
    """The pixels of a product that is added up by blending: blocks of 4 x `by` columns, each with `bands` slices of K.

    The bands of a block lie one below the other, and readers add them up. In `pairs`, the two bands of a pixel are
    neighbours, and add themselves up (`pair.glsl`).
    """

    by: int
    bands: int
    pairs: bool

    @property
    def sums(self) -> int:
        """Returns the number of sums of a column, which its readers add up."""
        return 1 if self.pairs else self.bands

    @property
    def paired(self) -> Defines:
        """Returns the define of shaders that read what pairs have written."""
        return {"PAIRS": 1} if self.pairs else {}

    def targets(self, width: int, values: int) -> Layout:
        """Returns the layout of targets for `width` columns of pixels, each with this many values."""
        layers = -(-values // 2) if self.pairs else values
        return Layout(self.bands * self.by, 4 * layers * width, (1, layers))


@dataclass(frozen=True)
class Stream:
    """The residual stream of one row, to which products add in place; `gain` and `offset` are those of the next norm.

    The row has `cols` columns in `strides` parts of `stride` texels, placed in `pixels`: see `stream.glsl`.
    """

    x: Tensor
    cols: int
    pixels: Pixels
    strides: int
    stride: int
    eps: float
    rms: bool
    offset: float = 0.0
    gain: Tensor | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """The samplers with which a product reads the row times the gain."""
        return {"x": self.x} | ({"gain": self.gain} if self.gain else {})

    @property
    def defines(self) -> Defines:
        """The defines of `stream.glsl`, and that of the gain's offset."""
        place: Defines = {"X_BY": self.pixels.by, "X_BANDS": self.pixels.bands, "X_STRIDE": self.stride}
        return place | self.pixels.paired | ({"GAIN_OFFSET": self.offset} if self.offset and self.gain else {})


@dataclass(frozen=True)
class StreamMoments:
    """The moments of a row, drawn next to its products from pixel column `first` on: see `stream_moments.frag`."""

    tensor: Tensor
    first: int
    width: int
    eps: float


@dataclass(frozen=True)
class Hidden:
    """The hidden layer of an MLP, which the product that reads it finishes: act(`sums`) * `factor`."""

    sums: PartialSums
    factor: PartialSums | None
    normed: Normed | None
    act: str | float | None

    @property
    def cols(self) -> int:
        """Returns the number of columns of the row."""
        return self.sums.cols


# A row, and its norm's gain and bias folded into the weight that the row is multiplied with (None: an RMS norm).
Normed = tuple[NormedRow | StreamMoments, tuple[Tensor, Tensor] | None]


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


Row = Tensor | AttendedRow | Hidden  # the input of a one-row product


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
