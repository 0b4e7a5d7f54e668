"""Records ops on heads: the QK norm, the rotation by position (Su et al. 2021), and writing q, k and v to caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from glgpt.ops.matmul import norm_inputs
from glgpt.ops.norm import gain_offset
from glgpt.ops.partial_sums import EACH_NEW_ROW, Normed, PartialSums, Rows, each_row
from glgpt.ops.pointwise import add_slices, plus, slice_rows
from glgpt.program.layout import Layout, texels
from glgpt.program.recorder import Recorder, Window
from glgpt.program.tape import Gradients
from glgpt.program.tensor import Tensor

Defines = dict[str, int | float | str]


@dataclass(frozen=True)
class HeadNorm:
    """An RMS norm of each head, or of all heads together, whose factor is gain + offset (Dehghani et al. 2023).

    `scales` are from `head_scales`. `gain` is `[1, d]` if it is the same for each head, otherwise `[1, heads * d]`.
    """

    scales: Tensor
    gain: Tensor
    offset: float = 0.0

    @property
    def per_head(self) -> bool:
        """True if there are several heads and each is normalised separately."""
        return self.scales.cols > 4

    def defines(self, d_head: int, cols: int) -> Defines:
        """Returns the defines for the shaders of the norm and of its gradient.

        `cols` is the number of columns of all heads, each padded to whole texels.
        """
        heads = cols // texels(d_head)
        group = {"GROUP4": texels(d_head) // 4, "COUNT": d_head} if self.per_head or heads == 1 else {}
        group = group or {"GROUP4": cols // 4, "COUNT": heads * d_head}
        shared: Defines = {"GAIN_PER_HEAD": 1} if self.gain.cols == d_head else {}
        return {**group, **shared, **gain_offset(self.offset)}


@dataclass(frozen=True)
class Rotation:
    """A rotation of columns i and i + n of each head by position * frequencies[i] radians.

    n is the number of frequencies. A head has `d_head` columns, and those from 2 n on are copied. Rotated columns are
    multiplied by `factor`. Without frequencies, heads are copied.
    """

    d_head: int
    frequencies: Sequence[float] = ()
    factor: float = 1.0

    @property
    def back(self) -> Rotation:
        """Returns the rotation by the opposite angles."""
        return replace(self, frequencies=[-f for f in self.frequencies])

    @property
    def defines(self) -> Defines:
        """Returns the defines of `rotary.frag`."""
        found: Defines = {"D_HEAD": self.d_head}
        if self.frequencies:
            found["FREQUENCIES"] = ", ".join(f"{f:.9e}" for f in self.frequencies)
        if 0 < 2 * len(self.frequencies) < self.d_head:
            found["ROTATED"] = 2 * len(self.frequencies)
        if self.frequencies and self.factor != 1:
            found["FACTOR"] = self.factor
        return found


@dataclass(frozen=True)
class HeadColumns:
    """The heads in the columns of a product x `[T, ..]` from texel `first` on, and their QK norm (None: no norm)."""

    x: Tensor | PartialSums
    first: int = 0
    norm: HeadNorm | None = None
    normed: Normed | None = None  # if x is partial sums: the norm of the row that was multiplied

    @property
    def source(self) -> tuple[dict[str, Tensor], Defines]:
        """Returns the inputs (tensors by sampler) and the defines with which a shader reads x."""
        inputs, defines = norm_inputs(self.normed)
        if isinstance(self.x, PartialSums):
            return self.x.inputs | inputs, self.x.at | defines
        return {"x": self.x}, {}


def head_scales(
    rec: Recorder, heads: HeadColumns, count: int, d_head: int, eps: float, name: str, together: bool = False
) -> Tensor:
    """Records 1 / sqrt(mean square + eps) of each of `count` heads, `[T, 4 * count]`.

    With `together`, records one such scale for all heads, `[T, 4]`. A scale is the first value of its texel.
    """
    inputs, defines = heads.source
    rows, share = heads.x.rows, count if together else 1
    y = rec.scratch(name, Layout(rows, 4 * count // share))
    group: Defines = {"FIRST": heads.first, "GROUP4": share * texels(d_head) // 4, "COUNT": share * d_head}
    group["HEAD_EPSILON"] = eps
    rec.emit("head_scales", inputs, {"y": y}, defines | group | each_row(rows))
    return y


def rotary(
    rec: Recorder,
    heads: HeadColumns,
    out: Tensor,
    rotation: Rotation,
    label: str,
    batch: int | Rows = 1,
    copied: tuple[HeadColumns, Tensor] | None = None,
) -> None:
    """Records a pass that normalises heads of a product, rotates them by position, and writes them to `out`.

    `out` is `[.., heads * d]`, and its rows are written from row `pos` on. If the product is partial sums, this op adds
    them up as `combine` does. With `Rows` instead of a batch size, rows are written from row `row` on, and each is
    rotated by the position of its text. If `out` is a scratch tensor, it has the same rows as the product, row
    t * batch + s (token t of sequence s) has position t, and the op has a gradient.

    `copied` is (other heads, another state): the same pass copies these heads to that state without rotating them. For
    example, the pass that writes the keys copies the values.
    """
    batch, rows = (1, batch) if isinstance(batch, Rows) else (batch, None)
    inputs, defines = heads.source
    defines |= {"BATCH": batch, **rotation.defines} | ({"FIRST": heads.first} if heads.first else {})
    if heads.norm:
        inputs |= {"scales": heads.norm.scales, "gain": heads.norm.gain}
        defines |= heads.norm.defines(rotation.d_head, out.cols)
    if rows:
        inputs, defines = inputs | {"places": rows.places}, defines | EACH_NEW_ROW
    if out.role == "state":
        window = Window((out.layout.width, heads.x.rows), "row" if rows else "pos")
        more = _copied(heads, copied[0]) if copied else ({}, {})
        outputs = {"y": out} | ({"other": copied[1]} if copied else {})
        rec.emit("rotary", inputs | more[0], outputs, defines | more[1], label=label, window=window)
        return
    rec.emit("rotary", inputs, {"y": out}, defines | {"FROM_ZERO": 1}, label=label)
    x = inputs["x"]

    def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
        back = {"BATCH": batch, "FROM_ZERO": 1, **rotation.back.defines}
        if heads.norm is None:
            whole = x.cols == out.cols
            dx = rec.scratch(f"d.{label}", x.layout)
            rec.emit("rotary", {"x": d[0]}, {"y": dx}, back if whole else back | {"INTO": heads.first})
            return [plus(rec, dx, sums[0])]
        dy = rec.scratch(f"d.{label}", Layout(out.rows, out.cols))
        rec.emit("rotary", {"x": d[0]}, {"y": dy}, back)
        return _head_norm_vjp(rec, heads, heads.norm, dy, rotation.d_head, sums)

    rec.differentiable(out, (x, heads.norm.gain) if heads.norm else (x,), vjp)


def can_copy(heads: HeadColumns, other: HeadColumns) -> bool:
    """True if one pass can write `heads` and `other`.

    Both must be partial sums: of one product, or of two products that have the same shape and no folded norm. `other`
    must not have a QK norm.
    """
    if not isinstance(heads.x, PartialSums) or not isinstance(other.x, PartialSums) or other.norm:
        return False
    folded = heads.normed is not None and heads.normed[1] is not None
    return heads.x == other.x or (heads.x.defines == other.x.defines and not folded)


def _copied(heads: HeadColumns, other: HeadColumns) -> tuple[dict[str, Tensor], Defines]:
    """Returns the inputs and defines with which `rotary.frag` copies `other`. Raises ValueError if not `can_copy`."""
    if not can_copy(heads, other) or not isinstance(other.x, PartialSums):
        raise ValueError("both products must have one shape and no folded norm")
    return ({}, {"OTHER_FIRST": other.first}) if heads.x == other.x else (other.x.second, other.x.second_at)


def _head_norm_vjp(
    rec: Recorder, heads: HeadColumns, norm: HeadNorm, dy: Tensor, d_head: int, sums: Gradients
) -> Gradients:
    """Records the gradients of the product and of the gain of a head norm.

    dy is the gradient of the normalised heads, and `sums` are the gradients so far. Returns (dx, gradient of the gain).
    """
    inputs: Mapping[str, Tensor] = heads.source[0]
    x, defines = inputs["x"], {"FIRST": heads.first, **norm.defines(d_head, dy.cols)}
    given = {"x": x, "dy": dy, "scales": norm.scales}
    dx = rec.scratch(f"d.{x.name}", x.layout)
    rec.emit("head_norm_vjp", given | {"gain": norm.gain}, {"y": dx}, defines)
    rows = slice_rows(dy.rows)
    slices = rec.scratch(f"d.{norm.gain.name}.slices", Layout(-(-dy.rows // rows), dy.cols))
    rec.emit("head_gain_vjp", given, {"y": slices}, defines | {"ROWS": rows})
    name = f"d.{norm.gain.name}"
    if norm.gain.cols != d_head or dy.cols == texels(d_head):
        return [plus(rec, dx, sums[0]), add_slices(rec, slices, name, sums[1])]
    whole, gain = add_slices(rec, slices, f"{name}.heads"), rec.scratch(name, norm.gain.layout)
    rec.emit("sum_heads", {"x": whole} | ({"plus": sums[1]} if sums[1] else {}), {"y": gain})
    return [plus(rec, dx, sums[0]), gain]
