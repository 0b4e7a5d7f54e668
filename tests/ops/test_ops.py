"""Compares every op with float64: odd shapes, every layout and format, and inputs that are not finite.

Styles also vary the options: the GLSL version (header), the function that fetches texels, and the kind of texture.
"""

from __future__ import annotations

import zlib
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cases import CASES, EVERY, SHAPE, TRAINING, VJPS
from cases.backward import backward
from cases.case import Array, Want
from helpers import reference as ref
from helpers.op_bench import QUANTISED, STYLES, Bench, held_to, play
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st

from glgpt.gl.device import Device

SHADERS = Path(__file__).parents[2] / "glsl"


@cache
def has_weights(case: str) -> bool:
    """True if a case multiplies by a weight or looks up values in one. Other cases are the same in q8, q4 and f16."""
    bench = Bench(STYLES["f16 8x8"])
    with bench.entry("test"):
        EVERY[case].record(bench, SimpleNamespace(**SHAPE))
    return bench.weights > 0


# Styles that combine features of others, and run only in `make test-slow`.
RARE = {"8x4", "1x4", "f16 4x8", "f16 folded", "f16 split", "q4 folded"}
SLOW = {"split", "q8 split"}  # slow to compile: these use SHAPE only
PLAIN = {"4x4", "4x8"}  # quick to compile: these use an additional shape, which finds more faults
CROSSED = [
    (case, style)
    for case in EVERY
    for style in STYLES
    if style not in QUANTISED or (case not in TRAINING and has_weights(case))  # training does not use quantised weights
]


@pytest.mark.parametrize(
    ("case", "style"),
    [pytest.param(*c, marks=[pytest.mark.slow] * (c[1] in SLOW)) for c in CROSSED if c[1] not in RARE],
)
def test_ops_are_their_reference(device: Device, case: str, style: str) -> None:
    """Fails if an op is wrong in one layout, in one format or with one option, or leaves garbage in its padding.

    All styles use SHAPE. Styles that are not SLOW also use the smallest shape, and PLAIN ones use a third shape.
    """
    if style in SLOW:
        agrees_with_its_reference(device, case, style, SimpleNamespace(**SHAPE), 0)
    else:
        drawn_shapes(device, case, style, 1 + (style in PLAIN))


@pytest.mark.soak
@pytest.mark.parametrize(("case", "style"), CROSSED)
def test_ops_of_other_shapes_are_their_reference(device: Device, case: str, style: str) -> None:
    """Draws other shapes in all styles; each shape compiles another shader."""
    drawn_shapes(device, case, style, 3)


def drawn_shapes(device: Device, case: str, style: str, count: int) -> None:
    @seed(zlib.crc32(f"{case} {style}".encode()))
    @settings(max_examples=count)
    @example(SimpleNamespace(**SHAPE), 0)
    @given(EVERY[case].shape, st.integers(0, 1000))
    def run(shape: SimpleNamespace, numbers: int) -> None:
        agrees_with_its_reference(device, case, style, shape, numbers)

    run()


def agrees_with_its_reference(device: Device, case: str, style: str, shape: SimpleNamespace, numbers: int) -> None:
    for played in play(device, Bench(STYLES[style], numbers), lambda b: EVERY[case].record(b, shape)):
        held_to(case, *played)


def test_every_shader_has_a_case() -> None:
    """Fails if a shader is played by no case, forward or backward."""
    drawn, shape = set(), SimpleNamespace(**SHAPE)
    records = [case.record for case in EVERY.values()] + [partial(backward, case=case) for case in VJPS]
    for record in records:
        bench = Bench(STYLES["4x4"])
        with bench.entry("test"):
            record(bench, s=shape)
        stems = [p.shader.rsplit("-", 1)[0] for p in bench.program().entries["test"].passes]
        drawn |= {name for stem in stems for name in stem.split("+")}
    assert drawn == {path.stem for path in SHADERS.glob("*/*.frag") if path.parent.name != "bench"}


SPOILED = {  # case: (an input, the output rows that one row of this input may affect)
    "embed": ("wpe", lambda row, s: [row - s.pos]),
    "norm": ("x", lambda row, s: [row]),
    "matmul": ("x", lambda row, s: [row]),
    "matmul_sum": ("x", lambda row, s: [row]),
    "head_rows": ("x", lambda row, s: [row]),
    "split_qkv": ("x", lambda row, s: [row + s.pos]),
    "scores": ("q", lambda row, s: range((row - s.pos) * s.n_head, (row - s.pos + 1) * s.n_head)),
    "softmax": ("x", lambda row, s: [row]),
    "attend": ("x", lambda row, s: [row // s.n_head]),
    "act": ("x", lambda row, s: [row]),
    "add": ("x", lambda row, s: [row]),
}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("style", ["4x8", "8x4", "f16 8x8"])
@pytest.mark.parametrize("case", SPOILED)
def test_a_row_that_is_not_finite_stays_alone(device: Device, case: str, style: str, value: float) -> None:
    """Fails if a NaN or infinity of one row reaches another row, or vanishes."""
    name, touched = SPOILED[case]
    spoiled, shape = 6, SimpleNamespace(**SHAPE)

    def spoil(given_name: str, array: Array) -> Array:
        if given_name == name:
            array[spoiled] = value
        return array

    def record(bench: Bench) -> list[Want]:
        return CASES[case].record(bench, shape)[:1]

    with np.errstate(invalid="ignore"):
        clean, dirty = (play(device, Bench(STYLES[style], 1, change), record)[0] for change in (None, spoil))
    rows = list(touched(spoiled, shape))
    assert not np.isfinite(dirty[1][rows]).all()
    others = np.delete(np.arange(len(clean[0].expected)), rows)
    assert np.array_equal(clean[1][others], dirty[1][others], equal_nan=True)  # a cache holds NaN beyond the position


@pytest.mark.parametrize("style", ["4x4", "8x4", "f16 8x8"])
def test_a_key_that_is_not_finite_is_hidden_by_the_mask(device: Device, style: str) -> None:
    """Fails if a NaN of a key reaches the scores of earlier positions."""
    shape, position = SimpleNamespace(**SHAPE), 9

    def spoil(name: str, array: Array) -> Array:
        if name == "k":
            array[position] = np.nan
        return array

    with np.errstate(invalid="ignore"):
        _, matrix, _ = play(device, Bench(STYLES[style], 1, spoil), lambda b: CASES["scores"].record(b, shape))[0]
    score = matrix[: 2 * shape.rows].reshape(shape.rows, 2, -1)
    before = position - shape.pos
    assert np.isfinite(score[:before]).all()
    assert np.isnan(score[before:, :, position]).all()
    assert np.isfinite(np.delete(score, position, axis=2)).all()


@pytest.mark.parametrize("case", ["softmax", "attend_row"])
def test_large_scores_do_not_overflow(device: Device, case: str) -> None:
    """Fails if softmax does not subtract the maximum before the exponential."""

    def enlarge(name: str, array: Array) -> Array:
        return np.where(array > ref.MASKED, 1e4 * array, array) if name == "x" else array

    shape = SimpleNamespace(**SHAPE | {"pos": 40})
    for played in play(device, Bench(STYLES["4x8"], 2, enlarge), lambda b: CASES[case].record(b, shape)):
        held_to(case, *played)


@pytest.mark.parametrize("kind", ["gelu_new", "gelu", "relu"])
@pytest.mark.parametrize("style", ["4x4", "8x4"])
def test_activations_hold_over_their_whole_range(device: Device, kind: str, style: str) -> None:
    """Fails if an activation overflows for a large value, or loses the small values of its tail."""
    size = np.concatenate([[0, 1e-30, 1e-6], np.geomspace(1e-3, 12, 60), np.geomspace(20, 1e30, 17)])
    values = np.concatenate([-size, size]).reshape(16, 10)
    shape = SimpleNamespace(rows=16, cols=10, act=kind)
    with np.errstate(over="ignore"):
        for played in play(
            device, Bench(STYLES[style], change=lambda *_: values), lambda b: CASES["act"].record(b, shape)
        ):
            held_to("act", *played)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 5, 129])
def test_the_best_token_is_one_even_of_values_that_are_not_finite(device: Device, value: float, at: int) -> None:
    """Fails if a logit that is not finite gives an invalid or a wrong token, or is not reported."""

    def spoil(_: str, array: Array) -> Array:
        array[0, at] = value
        return array

    shape = SimpleNamespace(vocab=130, tiles=1)
    want, token, _ = play(device, Bench(STYLES["4x4"], change=spoil), lambda b: CASES["argmax"].record(b, shape))[0]
    assert 0 <= token[0, 0] < shape.vocab and token[0, 2] == 1  # the flag for values that are not finite
    if not np.isnan(value):
        assert np.array_equal(token[:, :2], want.expected[:, :2])


def test_a_norm_folded_behind_its_product_keeps_a_row_with_a_large_mean(device: Device) -> None:
    """Fails if a mean of 50 standard deviations increases a folded norm's error more than 50 times."""

    def shift(name: str, array: Array) -> Array:
        return array + 50 if name == "x" else array

    shape = SimpleNamespace(inner=100, vocab=40, contiguous=0, panels=False)
    want, logits, _ = play(device, Bench(STYLES["4x4"], 3, shift), lambda b: CASES["head_row"].record(b, shape))[0]
    ref.within(logits, want.expected, 50 * CASES["head_row"].near[0], where="head_row")


@pytest.mark.parametrize("case", ["norm", "head_row", "rms_norm", "rms_row"])
def test_a_norm_of_a_row_whose_square_overflows_is_not_finite(device: Device, case: str) -> None:
    """Fails if an overflow gives a finite result: 1 / infinity is 0, which would turn the row into the bias."""

    def enlarge(name: str, array: Array) -> Array:
        return array * 1e20 if name == "x" else array

    shape = SimpleNamespace(rows=1, cols=100, inner=100, vocab=40, contiguous=0, panels=False, shift=0, act=None)
    bench, output = Bench(STYLES["4x4"], 3, enlarge), int(case == "rms_row")
    with np.errstate(all="ignore"):
        wants = play(device, bench, lambda b: EVERY[case].record(b, shape))
    assert not np.isfinite(wants[output][1]).any()


@pytest.mark.parametrize("case", ["cross_entropy_rows", "prediction"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_loss_of_logits_that_are_not_finite_is_nan(device: Device, case: str, value: float) -> None:
    """Fails if the loss hides a logit that is not finite, such as -infinity, whose exponential is 0."""

    def spoil(name: str, array: Array) -> Array:
        if name in ("x", "coarse"):
            array[3, 60] = value
        return array

    shape = SimpleNamespace(rows=6, vocab=130)
    with np.errstate(all="ignore"):
        _, found, _ = play(device, Bench(STYLES["4x8"], 5, spoil), lambda b: EVERY[case].record(b, shape))[0]
    losses = found[:, 0]
    assert np.isnan(losses[3]) and np.isfinite(np.delete(losses, 3)).all()


def test_a_score_that_overflows_is_not_masked(device: Device) -> None:
    """Fails if a score that overflows to -infinity is stored as such: it would get no weight, like a masked one."""

    def enlarge(name: str, array: Array) -> Array:
        return np.full_like(array, {"q": -1e25, "k": 1e25}.get(name, 0))

    shape = SimpleNamespace(**SHAPE)
    with np.errstate(all="ignore"):
        _, matrix, _ = play(device, Bench(STYLES["4x4"], 1, enlarge), lambda b: CASES["scores"].record(b, shape))[0]
    scores = matrix[: 2 * shape.rows].reshape(shape.rows, 2, -1)
    for row in range(shape.rows):
        seen = scores[row, :, : shape.pos + row + 1]
        assert not np.isfinite(seen).any() and not (seen == -np.inf).any()
