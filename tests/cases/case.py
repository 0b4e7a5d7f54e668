"""Defines cases of ops, forward and on a tape, and what the cases of several subjects share."""

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
    """A tensor and its expected values. `read` converts its matrix to what is compared; `bare`: not zero beyond it.

    `summed` are the magnitudes that were added up as float16; their rounding is within k eps of these.
    """

    tensor: Tensor
    expected: Array
    read: Callable[[Array], Array] | None = None
    bare: bool = False
    summed: Array | None = None


@dataclass(frozen=True)
class Case:
    """An op. `near` = (atol, k) means |ours - ref| <= atol + k eps |ref|; eps is that of float16 if packed.

    atol bounds the rounding of a sum's terms: about sqrt(terms) x their size x 2^-24, with a margin for the drivers'
    order of addition. k bounds the errors that scale with the result. exp and 1/sqrt are off by a few units.
    """

    shape: st.SearchStrategy[SimpleNamespace]
    record: Callable[[Bench, SimpleNamespace], list[Want]]
    near: tuple[float, float]


@dataclass(frozen=True)
class Taped:
    """An op on the tape.

    `function` computes its outputs in float64 from the matrices of `inputs`, by name; rows that it omits at the end of
    an output are unused. For some inputs only the first `rows` count: the other rows have no gradient, or, if they are
    `spare`, any gradient. `rigid`: the outputs' gradients have the outputs' layouts, or that of `given`, and are zero
    where `dy` is.
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
    """An op's vjp; `near` = (atol, k): each value of a gradient g may be off by atol + k eps |g|.

    For packed tensors, eps is that of float16, and a value may be off by `halves` more: the sum of what rounding
    intermediate values to float16 adds, each by 2^-11 of its size.
    """

    shape: st.SearchStrategy[SimpleNamespace]
    record: Callable[[Bench, SimpleNamespace], Taped]
    near: tuple[float, float]
    halves: float = 0.0


def tall(b: Bench) -> None:
    """Raises a style's limit for caches and weights that are not folded; it stays far below a device's."""
    b.limits = replace(b.limits, max_texture_size=1024)


def unfolded(b: Bench) -> None:
    """Raises a style's limit for tensors that are not folded; it stays far below a device's."""
    b.limits = replace(b.limits, max_texture_size=256)


def rows_at(b: Bench, s: SimpleNamespace, positions: int, height: int) -> tuple[ops.Rows, Array, Array]:
    """Returns (rows, places, table) of texts at their own positions; their keys are in any rows of such caches."""
    places = np.zeros((s.texts, 4))
    places[:, 0] = b.rng.integers(0, positions, s.texts)
    table = np.stack([b.rng.permutation(height)[:positions] for _ in range(s.texts)])
    given = b.given("places", places, role="state"), b.given("table", table, role="state")
    return ops.Rows(s.texts, *given), places[:, 0].astype(int), table
