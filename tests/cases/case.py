"""Defines the classes of cases (forward and gradient), and functions that cases of several subjects use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from glgpt import ops
from glgpt.program.layout import Layout
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from helpers.op_bench import Bench


Array = NDArray[Any]


@dataclass(frozen=True)
class Want:
    """A tensor and its expected values.

    `read` converts the tensor's matrix to the values that are compared. `bare`: columns beyond the matrix may be
    nonzero. `summed`: if partial sums are rounded to float16, the sum of their terms' magnitudes, which bounds the
    rounding error.
    """

    tensor: Tensor
    expected: Array
    read: Callable[[Array], Array] | None = None
    bare: bool = False
    summed: Array | None = None


@dataclass(frozen=True)
class Case:
    """A case of an op. `near` = (atol, k) means |ours - ref| <= atol + k eps |ref|, with eps of the tensor's format.

    atol bounds the rounding of a sum's terms: about sqrt(terms) x their size x 2^-24, with a margin for the drivers'
    order of addition. k bounds the errors that scale with the result. exp and 1/sqrt are off by a few eps.
    """

    shape: st.SearchStrategy[SimpleNamespace]
    record: Callable[[Bench, SimpleNamespace], list[Want]]
    near: tuple[float, float]


@dataclass(frozen=True)
class Taped:
    """A case of an op that a tape (`Recorder.taping`) records.

    `function` computes the outputs in float64 from the matrices of `inputs`, by name. If `function` returns fewer rows
    than an output has, the other rows are unused. `rows`: the number of used rows of an input. The gradient of the
    other rows must be zero; if `spare`, it is not checked. The test multiplies its random gradients of the outputs by
    `dy`. If `rigid`, these gradients have the layout `given`, or the layout of their output if `given` is None.
    """

    outputs: tuple[Tensor, ...]
    inputs: dict[str, Tensor]
    function: Callable[..., tuple[Array, ...]]
    rows: dict[str, int] = field(default_factory=dict)
    spare: bool = False
    rigid: bool = False
    given: Layout | None = None
    dy: Array | float = 1.0


@dataclass(frozen=True)
class VjpCase:
    """A case of an op's vjp (vector-Jacobian product). `near` = (atol, k): a gradient g may be off by atol + k eps |g|.

    For packed tensors, eps is that of float16, and a value may be off by `halves` more. `halves` is the sum of
    the errors of rounding intermediate values to float16, each 2^-11 of the value.
    """

    shape: st.SearchStrategy[SimpleNamespace]
    record: Callable[[Bench, SimpleNamespace], Taped]
    near: tuple[float, float]
    halves: float = 0.0


def tall(b: Bench) -> None:
    """Sets a larger maximum texture size (every device allows it), since the case does not fold caches and weights."""
    b.limits = replace(b.limits, max_texture_size=1024)


def unfolded(b: Bench) -> None:
    """Sets a larger maximum texture size (every device allows it), since the case does not fold its tensors."""
    b.limits = replace(b.limits, max_texture_size=256)


def rows_at(b: Bench, s: SimpleNamespace, positions: int, height: int) -> tuple[ops.Rows, Array, Array]:
    """Returns (rows, places, table) of texts at random positions. `table` maps positions to random rows < `height`."""
    places = np.zeros((s.texts, 4))
    places[:, 0] = b.rng.integers(0, positions, s.texts)
    table = np.stack([b.rng.permutation(height)[:positions] for _ in range(s.texts)])
    given = b.given("places", places, role="state"), b.given("table", table, role="state")
    return ops.Rows(s.texts, *given), places[:, 0].astype(int), table
