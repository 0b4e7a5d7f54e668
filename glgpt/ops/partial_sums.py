"""Intermediate values of ops on one row or a few rows: partial sums, rows before a norm, ranges of keys, positions.

A product has partial sums, one for each slice of its inner dimension K; the op that reads the product adds them up.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from glgpt.program.layout import Layout
from glgpt.program.tensor import Tensor

Defines = dict[str, int | float | str]  # macros of a shader and their values


@dataclass(frozen=True)
class PartialSums:
    """A product of `rows` rows and `cols` columns, as partial sums in `tensor`.

    `defines` are macros with which a shader finds the partial sums of a row and column (`partial_sums.glsl`). `bias`
    `[1, cols]` is added to the sums where they are read.
    """

    tensor: Tensor
    cols: int
    defines: dict[str, int | float | str]
    rows: int = 1
    bias: Tensor | None = None
    # Pixel column at which the product begins. None: the first; otherwise the columns before it hold other products or
    # are not drawn.
    first: int | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Returns the tensors, by sampler, for `partial_sums.glsl` and for the op that adds up the sums."""
        return {"partial_sums": self.tensor} | ({"shift": self.bias} if self.bias else {})

    @property
    def second(self) -> dict[str, Tensor]:
        """Returns the tensors, by sampler, for `finished_sum.glsl`, if it reads two products and this is the second."""
        return {"second_sums": self.tensor} | ({"second_shift": self.bias} if self.bias else {})

    @property
    def at(self) -> Defines:
        """Returns the defines of `partial_sums.glsl`."""
        return self.defines | ({"SUMS_FIRST": self.first} if self.first is not None else {})

    @property
    def second_at(self) -> Defines:
        """Returns the defines of `finished_sum.glsl`, if it reads two products and this is the second."""
        return {"SECOND_FIRST": self.first} if self.first is not None else {}

    def plus(self, bias: Tensor | None) -> PartialSums:
        """Returns the same sums with a bias `[1, N]` (None: no bias), which is added where the sums are added up."""
        return replace(self, bias=bias)


@dataclass(frozen=True)
class NormedRow:
    """A row before its norm. The next product is computed from this row, and the norm is then applied to the product.

    `x` is the row, and `scaled` is the row times the norm's gain; both are `[1, C]`, or `[n, C]` for n rows. `moments`
    holds (mean, sum of squared deviations, count) of slices of the row. `eps` is the norm's epsilon. See `norm_fold`
    and `combine`.
    """

    x: Tensor
    scaled: Tensor
    moments: Tensor
    eps: float


@dataclass(frozen=True)
class Pixels:
    """The pixels of a product that is added up by blending: blocks of 4 x `by` pixels, each for different columns.

    Each block is repeated in `bands` bands, which compute the same columns for different slices of K. The bands of a
    block lie one below the other, and the shaders that read the product add them up. With `pairs`, there are two bands,
    in neighbouring pixels that add up their slices before blending (`pair.glsl`).
    """

    by: int
    bands: int
    pairs: bool

    @property
    def sums(self) -> int:
        """Returns how many sums of a column the readers of the product have to add up."""
        return 1 if self.pairs else self.bands

    @property
    def paired(self) -> Defines:
        """Returns the define of shaders that read the output of pairs of pixels; no define without pairs."""
        return {"PAIRS": 1} if self.pairs else {}

    def targets(self, width: int, values: int) -> Layout:
        """Returns the layout of the target of a product that is `width` pixels wide, with `values` texels per pixel."""
        layers = -(-values // 2) if self.pairs else values
        return Layout(self.bands * self.by, 4 * layers * width, (1, layers))


@dataclass(frozen=True)
class Stream:
    """The residual stream of one row, to which products add in place.

    The row has `cols` columns, in `strides` parts of `stride` texels; `pixels` describes their places in x (see
    `stream.glsl`). `eps`, `rms` (true for an RMS norm), `offset` and `gain` are those of the next norm, whose factor is
    gain + offset.
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
        """Returns the tensors, by sampler, with which a product reads the row times the gain."""
        return {"x": self.x} | ({"gain": self.gain} if self.gain else {})

    @property
    def defines(self) -> Defines:
        """Returns the defines of `stream.glsl`, and the define for the offset of the gain."""
        place: Defines = {"X_BY": self.pixels.by, "X_BANDS": self.pixels.bands, "X_STRIDE": self.stride}
        return place | self.pixels.paired | ({"GAIN_OFFSET": self.offset} if self.offset and self.gain else {})


@dataclass(frozen=True)
class StreamMoments:
    """Moments of a row of `width` columns: see `stream_moments.frag`.

    The moments are in the same tensor as the products of the row, from pixel column `first` on. `eps` is the norm's
    epsilon.
    """

    tensor: Tensor
    first: int
    width: int
    eps: float


@dataclass(frozen=True)
class Hidden:
    """The hidden layer of an MLP, act(`sums`) * `factor` (None: 1).

    The product that reads this layer computes it from the partial sums of `sums` and `factor`. `normed` is the norm of
    the MLP's input (None: no norm is left to apply).
    """

    sums: PartialSums
    factor: PartialSums | None
    normed: Normed | None
    act: str | float | None

    @property
    def cols(self) -> int:
        """Returns the number of columns of the row."""
        return self.sums.cols


# A row before its norm, and the folded norm: the tensors (gain w, bias w), where w is the weight by which the row is
# multiplied (`norm_fold`). An RMS norm has no bias and is not folded: None instead of the tensors.
Normed = tuple[NormedRow | StreamMoments, tuple[Tensor, Tensor] | None]


@dataclass(frozen=True)
class AttendedRow:
    """The attention of one row, computed in ranges of keys that are not yet combined.

    `values` `[ranges, n_head * d]` holds the result of each range; `logs` of the same shape holds the logarithm of the
    range's sum of exponentials. `defines` are those of `attended.glsl`.
    """

    values: Tensor
    logs: Tensor
    defines: Defines

    @property
    def cols(self) -> int:
        """Returns the number of columns of the row."""
        return self.values.cols


Row = Tensor | AttendedRow | Hidden  # the input of a one-row product


@dataclass(frozen=True)
class Rows:
    """A batch of `size` texts that are decoded together, each at its own position, with shared key and value caches.

    `places` `[size, 4]` holds the position of each text in the first column. `table` `[size, context]` holds, for each
    text and position, the number of the row of the caches that holds the key and the value. The keys and values of the
    new tokens are written to `size` rows of the caches; the runtime scalar `row` is the first of these rows.
    """

    size: int
    places: Tensor
    table: Tensor


def each_row(rows: int) -> dict[str, int | float | str]:
    """Returns the define for the row that a fragment computes, if there are several rows; otherwise no define.

    `partial_sums.glsl` and `folded_norm.glsl` read it.
    """
    return {"BATCH_ROW": "int(gl_FragCoord.y)"} if rows > 1 else {}


# The define of `each_row` for passes that write new rows of caches, from the row in the scalar `row` on.
EACH_NEW_ROW: dict[str, int | float | str] = {"BATCH_ROW": "(int(gl_FragCoord.y) - row)"}
