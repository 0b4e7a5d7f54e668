"""Compares every op's gradients with central differences of the float64 reference, in random directions."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from cases import SHAPE, VJPS
from cases.backward import Backward, backward
from helpers.op_bench import QUANTISED, STYLES, Bench, textures
from helpers.reference_training import kept, slope
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from glgpt.gl.device import Device

Array = NDArray[np.float64]
# SLOW styles are slow to compile. The others test both values of each of `Options` (GLSL version, function that fetches
# texels, kind of texture), and folded tensors. RARE styles combine features of other styles, and run only in `make
# test-slow`.
RARE = {"8x4", "f16 4x8", "f16 split"}
SLOW = {"4x8", "split"} | RARE
TRAINED = [
    pytest.param(s, marks=[pytest.mark.soak] * (s in RARE) + [pytest.mark.slow] * (s in SLOW))
    for s in STYLES
    if s != "1x4" and s not in QUANTISED
]


def directions(bench: Bench, shape: tuple[int, int], rows: int) -> list[Array]:
    """Returns two random directions, and one in which only the last value, next to the padding, changes."""
    found = [bench.rng.standard_normal(shape) for _ in range(2)] + [np.zeros(shape)]
    found[2][rows - 1, -1] = 1
    for v in found:
        v[rows:] = 0
    return found


def held_to_slopes(case: str, bench: Bench, b: Backward, played: list[tuple[Array, Array]]) -> None:
    """Compares <gradient, v> with the slope along v; the tolerance is the sum of the values' errors."""
    atol, k = VJPS[case].near
    atol += VJPS[case].halves * bench.style.format.packed
    taped, values = b.taped, {name: bench.held[x.name] for name, x in b.taped.inputs.items()}
    dys = [dy[: len(y)] for dy, y in zip(b.dys, taped.function(**values), strict=True)]
    for name, (matrix, whole) in zip(taped.inputs, played, strict=True):
        eps = b.gradients[name].layout.format.spacing
        rows, so_far = taped.rows.get(name, len(matrix)), b.so_far.get(name, np.zeros(1))
        ours = matrix[:rows].astype(np.float64)
        assert matrix.shape == values[name].shape and np.isfinite(ours).all(), f"{case}: d.{name}"
        assert taped.spare or not matrix[rows:].any(), f"{case}: d.{name} is not zero in rows of padding"
        assert not whole[:rows, matrix.shape[1] :].any(), f"{case}: d.{name} is not zero beyond its columns"
        for v in directions(bench, matrix.shape, rows):
            wanted = slope(taped.function, values, name, v, dys) + (so_far * v).sum()
            allowed = ((atol + k * eps * np.abs(ours)) * np.abs(v[:rows])).sum() + 1e-8 * max(1, abs(wanted))
            off = abs((ours * v[:rows]).sum() - wanted)
            assert off <= allowed, f"{case}: d.{name} is {off:.2e} off along a direction, {allowed:.2e} allowed"


@pytest.mark.parametrize("style", TRAINED)
@pytest.mark.parametrize("case", VJPS)
def test_gradients_are_the_slopes(device: Device, case: str, style: str) -> None:
    """Fails if a vjp omits a term or the gradient so far, counts padding, or is wrong with a layout or an option.

    Styles that compile slowly use SHAPE only. The others also use the smallest shape, and "folded" uses a third one.
    """
    drawn = settings(phases=[Phase.explicit]) if style in SLOW else settings(max_examples=1 + (style == "folded"))

    @drawn
    @given(VJPS[case].shape, st.integers(0, 1000))
    @example(SimpleNamespace(**SHAPE), 0)
    def run(shape: SimpleNamespace, numbers: int) -> None:
        bench = Bench(STYLES[style], numbers)
        with bench.entry("test"):
            recorded = backward(bench, case, shape)
        held_to_slopes(case, bench, recorded, textures(device, bench))

    run()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_expectation_and_draws_anew(rate: float) -> None:
    """Fails if the hash that decides which values are dropped has a bias or repeats.

    This tests the hash in NumPy; other tests check that the shader computes the same bits.
    """
    size, place = (300, 400), {"site": 3, "seed": 1, "step": 2, "part": 0}
    mask = kept(*size, rate, **place)
    spread = np.sqrt(rate / (1 - rate))  # standard deviation of a value of the mask, whose mean is 1

    def chance(values: Array) -> float:
        """Returns the distance of the mean of independent values of variance 1 from zero, in standard deviations."""
        return abs(values.mean()) * np.sqrt(values.size)

    around = (mask - 1) / spread
    assert chance(around) < 4
    assert max(np.abs(around.mean(axis=axis)).max() * np.sqrt(size[axis]) for axis in (0, 1)) < 5
    near = [around[1:] * around[:-1], around[:, 1:] * around[:, :-1], around[:, 4:] * around[:, :-4]]
    others = [kept(*size, rate, **{**place, name: place[name] + 1}) for name in place]
    assert max(chance(product) for product in [*near, *(around * (other - 1) / spread for other in others)]) < 4
