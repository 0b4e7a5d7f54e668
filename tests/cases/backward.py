"""Records a case and its backward pass."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from cases import VJPS
from cases.case import Array, Taped
from glgpt.program.layout import Layout, fold
from glgpt.program.tensor import Tensor

if TYPE_CHECKING:
    from helpers.op_bench import Bench


@dataclass(frozen=True)
class Backward:
    """A recorded backward pass.

    `gradients`: of the inputs. `dys`: random gradients of the outputs. `so_far`: earlier gradients of the inputs, to
    which the pass adds.
    """

    taped: Taped
    gradients: dict[str, Tensor]
    dys: list[Array]
    so_far: dict[str, Array]


def backward(b: Bench, case: str, s: SimpleNamespace) -> Backward:
    """Records a case and its backward pass from random gradients of the outputs. The program outputs `gradients`."""
    with b.taping() as tape:
        taped = VJPS[case].record(b, s)
    sums, dys = dict[Tensor, Tensor](), []
    for i, y in enumerate(taped.outputs):
        plain = s.plain_dy and not taped.rigid
        layout = fold(y.rows, y.cols, b.limits.max_texture_size) if plain else taped.given or y.layout
        values = np.ones((1, 4)) if case == "cross_entropy" else b.rng.standard_normal((y.rows, y.cols))
        sums[y] = b.given(f"dy.{i}", values * taped.dy, layout)
        dys.append(b.held[f"dy.{i}"])
    so_far = dict[str, Array]()
    for name, x in taped.inputs.items() if s.so_far and case != "cross_entropy" else ():
        values = b.rng.standard_normal((x.rows, x.cols))
        values[taped.rows.get(name, x.rows) :] = 0
        fused = fold(x.rows, x.cols, b.limits.max_texture_size, b.style.tiles[1])
        fused = Layout(x.rows, x.cols, (b.style.tiles[0], fused.tiles[1]))  # the layout that a product writes
        sums[x] = b.given(f"so_far.{name}", values, x.layout if s.plain_dy else fused)
        so_far[name] = b.held[f"so_far.{name}"]
    found = tape.backward(sums)
    gradients = {name: found[x] for name, x in taped.inputs.items()}
    for name, gradient in gradients.items():
        b.output(gradient, name)
    return Backward(taped, gradients, dys, so_far)
