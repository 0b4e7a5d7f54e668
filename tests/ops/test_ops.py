"""Compares every op with float64: odd shapes, every layout, header, fetch and storage, inputs that are not finite."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import reference as ref
from cases import CASES, Want
from cases_families import FAMILIES, FAMILIES_VJPS
from cases_families import SHAPE as FAMILIES_SHAPE
from cases_llama import LLAMA, LLAMA_VJPS
from cases_llama import SHAPE as LLAMA_SHAPE
from cases_rows import ROWS
from cases_rows import SHAPE as ROWS_SHAPE
from cases_training import TRAINING
from cases_vjp import VJPS, backward
from hypothesis import example, given, seed, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from glgpt import ops
from glgpt.gl.device import Device, Options
from glgpt.gl.player import Player
from glgpt.program.formats import FORMATS, Format
from glgpt.program.layout import Layout, fold, one_layer, texels
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits
from glgpt.program.tensor import Tensor

Array = NDArray[Any]
Change = Callable[[str, Array], Array]
SHADERS = Path(__file__).parents[2] / "glsl"
EPS = FORMATS["f32"].spacing


@dataclass(frozen=True)
class Style:
    """The tiling and storage of tensors with many rows, the way shaders are built, and the device's limits.

    `weights` is the format of weights if it differs from that of rows.
    """

    tiles: tuple[int, int] = (4, 1)
    dtype: str = "f32"
    options: Options = field(default_factory=Options)
    limits: Limits = field(default_factory=Limits)
    weights: str = ""

    @property
    def format(self) -> Format:
        return FORMATS[self.dtype]


STYLES = {
    "4x4": Style((4, 1), "f32", Options("300 es", "texelFetch", "float"), Limits(max_draw_buffers=4)),
    "4x8": Style((4, 2), "f32", Options("330", "textureLod", "float")),
    "8x4": Style((8, 1), "f32", Options("300 es", "textureLod", "uint")),
    "1x4": Style((1, 1), "f32", Options("330", "texelFetch", "uint")),
    "folded": Style((4, 2), "f32", Options("300 es", "textureLod", "uint"), Limits(max_texture_size=32)),
    "split": Style((8, 2), "f32", Options("330", "texelFetch", "float"), Limits(32, max_draw_buffers=4)),
    "f16 8x8": Style((8, 2), "f16", Options("300 es", "textureLod", "float", False)),
    "f16 4x8": Style((4, 2), "f16", Options("330", "texelFetch", "uint", False), Limits(max_draw_buffers=4)),
    "f16 folded": Style((8, 2), "f16", Options("330", "textureLod", "uint"), Limits(max_texture_size=32)),
    "f16 split": Style((8, 2), "f16", Options("300 es", "textureLod", "float"), Limits(32, max_draw_buffers=4)),
}
QUANTISED = {
    "q8 8x8": Style((8, 2), "f16", Options("300 es", "texelFetch", "float", False), Limits(), "q8"),
    "q8 split": Style((8, 2), "f16", Options("330", "textureLod", "uint"), Limits(32, max_draw_buffers=4), "q8"),
    "q4 4x8": Style((4, 2), "f16", Options("330", "textureLod", "float"), Limits(max_draw_buffers=4), "q4"),
    "q4 folded": Style((8, 2), "f16", Options("300 es", "textureLod", "uint", False), Limits(32), "q4"),
}
STYLES |= QUANTISED


class Bench(Recorder):
    """Records one op on given arrays and plays it. `change` can modify an array before it is uploaded."""

    def __init__(self, style: Style, seed: int = 0, change: Change | None = None) -> None:
        super().__init__(style.limits)
        self.style, self.rng, self.pos, self.row = style, np.random.default_rng(seed), 0, 0
        self.more: dict[str, float] = {}  # scalars other than pos and row
        self.change = change or (lambda _, array: array)
        self.weights = 0  # number of weights
        self.arrays: dict[str, Array] = {}  # the given arrays
        self.held: dict[str, Array] = {}  # the values in the textures, as float64
        self.seen: dict[str, Tensor] = {}

    def given(self, name: str, array: Array, layout: Layout | None = None, role: str = "weight") -> Tensor:
        """Returns a tensor that holds this array, in one layer unless a layout is given."""
        layout = layout or Layout(*array.shape)
        array = self.change(name, np.asarray(array, np.float64).copy())
        self.arrays[name], self.held[name] = array, layout.unpack(layout.pack(array)).astype(np.float64)
        return self.fixed(name, layout, role)

    def normal(self, name: str, rows: int, cols: int, layout: Layout | None = None, role: str = "weight") -> Tensor:
        """Returns a tensor of normally distributed values."""
        return self.given(name, self.rng.standard_normal((rows, cols)), layout, role)

    def weight(self, name: str, rows: int, cols: int, panels: bool = False) -> Tensor:
        """Returns a weight in a model's layout: rows padded to whole texels; folded to fit the limits, or in panels."""
        dtype = self.style.weights or self.style.dtype
        layout = fold(texels(rows), cols, self.limits.max_texture_size, dtype=dtype)
        layout = ops.panels(self, texels(rows), cols, dtype) if panels else layout
        self.weights += 1
        return self.given(name, np.pad(self.rng.standard_normal((rows, cols)), ((0, -rows % 4), (0, 0))), layout)

    def stream(self, rows: int, cols: int) -> Layout:
        """Returns the layout of the residual stream."""
        tr, tc = self.style.tiles
        return Layout(rows, cols, (tr, 1 if self.style.format.packed else tc))

    def heads(self, rows: int, cols: int) -> Layout:
        """Returns the layout of queries, keys and values in training."""
        return one_layer(rows, cols, self.style.dtype)

    def many(self, rows: int, cols: int) -> Layout:
        """Returns the layout of a product's left factor."""
        return Layout(rows, cols, self.style.tiles, self.style.dtype)

    def fixed_layout(self, name: str) -> Layout:
        return self._fixed[name].layout

    def scratch(self, name: str, layout: Layout) -> Tensor:
        self.seen[name] = super().scratch(name, layout)
        return self.seen[name]


def play(device: Device, bench: Bench, record: Callable[[Bench], list[Want]]) -> list[tuple[Want, Array, Array]]:
    """Records and plays the op; returns (wanted, its matrix, all values of its texture)."""
    with bench.entry("test"):
        wants = record(bench)
        for i, want in enumerate(wants):
            bench.output(want.tensor, str(i))
    return [(w, *held) for w, held in zip(wants, textures(device, bench), strict=True)]


def textures(device: Device, bench: Bench) -> list[tuple[Array, Array]]:
    """Plays the program with scratch full of NaN; returns (matrix, all values of the texture) for each output."""
    program = bench.program()
    with Player(device, program, bench.style.options) as player:
        for t in program.textures.values():
            if t.role == "scratch":
                for layer in range(t.layers):
                    player.write(t.name, layer, np.full((t.height, t.width, 4), np.nan, np.float32))
        for name, array in bench.arrays.items():
            player.write_matrix(name, bench.fixed_layout(name), array)
        player.play("test", pos=bench.pos, row=bench.row, **bench.more)
        views = program.entries["test"].outputs.values()
        return [unpacked(view, player.read(view.texture)) for view in views]


def unpacked(layout: Layout, texels: Array) -> tuple[Array, Array]:
    rows, cols = layout.height * layout.tiles[0], 4 * layout.width * layout.tiles[1]
    whole = Layout(rows, cols, layout.tiles, layout.dtype).unpack(texels)
    return whole[: layout.rows, : layout.cols], whole


def held_to(case: str, want: Want, matrix: Array, whole: Array) -> None:
    """Compares a result with the reference, and checks that texels beyond the matrix are zero."""
    near: float | Array
    near, k = EVERY[case].near
    ours, fmt = want.read(matrix) if want.read else matrix, want.tensor.layout.format
    if k and fmt.name == "f16":  # numbers below 2^-14 have a spacing of 2^-24
        near += k * 2.0**-25
    if want.summed is not None:
        near = near + FORMATS["f16"].spacing / 2 * want.summed  # each partial sum was rounded once
    ref.within(ours, want.expected, near, k * fmt.spacing, f"{case}: {want.tensor.name}")
    assert want.bare or not whole[: len(ours), matrix.shape[1] :].any(), (
        f"{case}: {want.tensor.name} is not zero beyond its columns"
    )


def has_weights(case: str) -> bool:
    """True if a case multiplies with a weight or looks one up; for others, q8 and q4 are the same as f16."""
    bench = Bench(STYLES["f16 8x8"])
    with bench.entry("test"):
        EVERY[case].record(bench, SimpleNamespace(**SHAPE))
    return bench.weights > 0


SHAPE = {"rows": 11, "cols": 21, "inner": 18, "vocab": 33, "pos": 4, "n_head": 2, "d4": 2, "spare": 3, "row": 5} | {
    **{"act": "gelu", "bias": True, "residual": True, "shift": True, "plain": False, "normed": False, "named": True},
    **{"tiles": 2, "split_k": 3, "contiguous": 0, "width": 20, "least": 16, "panels": True, "counted": (2, 0, 3, 1)},
    **{"batch": 2, "rate": 0.3, "seed": 5, "tensors": 17, "clip": 1.0, "so_far": True, "plain_dy": False},
    **{"per": 2, "at": 7},
    **LLAMA_SHAPE,
    **FAMILIES_SHAPE,
    **ROWS_SHAPE,
}
EVERY = CASES | TRAINING | LLAMA | ROWS | FAMILIES
# Slow to compile; the others are tested in all combinations.
SLOW = {"8x4", "1x4", "split", "f16 4x8", "f16 folded", "f16 split", "q8 split", "q4 folded"}
CROSSED = [
    pytest.param(case, style, marks=[pytest.mark.slow] * (style in SLOW))
    for case in EVERY
    for style in STYLES
    if style not in QUANTISED or (case not in TRAINING and has_weights(case))  # training does not use quantised weights
]


@pytest.mark.parametrize(("case", "style"), CROSSED)
def test_ops_are_their_reference(device: Device, case: str, style: str) -> None:
    """Fails if an op is wrong in one layout, header, fetch or storage, or leaves garbage in its padding.

    Every style draws the smallest shape and another one; styles that compile quickly also use SHAPE.
    """

    @seed(zlib.crc32(f"{case} {style}".encode()))
    @settings(max_examples=2)
    @given(EVERY[case].shape, st.integers(0, 1000))
    def run(shape: SimpleNamespace, numbers: int) -> None:
        for played in play(device, Bench(STYLES[style], numbers), lambda b: EVERY[case].record(b, shape)):
            held_to(case, *played)

    (run if style in SLOW else example(SimpleNamespace(**SHAPE), 0)(run))()


def test_every_shader_has_a_case() -> None:
    """Fails if no case plays some shader, forward or backward."""
    drawn, shape = set(), SimpleNamespace(**SHAPE)
    records = [case.record for case in EVERY.values()] + [partial(backward, case=case) for case in VJPS]
    records += [partial(backward, case=case, cases=LLAMA_VJPS) for case in LLAMA_VJPS]
    records += [partial(backward, case=case, cases=FAMILIES_VJPS) for case in FAMILIES_VJPS]
    for record in records:
        bench = Bench(STYLES["4x4"])
        with bench.entry("test"):
            record(bench, s=shape)
        drawn |= {p.shader.rsplit("-", 1)[0] for p in bench.program().entries["test"].passes}
    assert drawn == {path.stem for path in SHADERS.glob("*/*.frag") if path.parent.name != "bench"}


SPOILED = {  # case: (an input, the rows of the output that one of its rows may affect)
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
    """Fails if an activation overflows for a large value, or loses a tail."""
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
    """Fails if a NaN among the logits gives an invalid token, or hides an infinity."""

    def spoil(_: str, array: Array) -> Array:
        array[0, at] = value
        return array

    shape = SimpleNamespace(vocab=130, tiles=1)
    want, token, _ = play(device, Bench(STYLES["4x4"], change=spoil), lambda b: CASES["argmax"].record(b, shape))[0]
    assert 0 <= token[0, 0] < shape.vocab and token[0, 2] == 1  # the flag that tells the caller
    if not np.isnan(value):
        assert np.array_equal(token[:, :2], want.expected[:, :2])


def test_a_norm_folded_behind_its_product_keeps_a_row_with_a_large_mean(device: Device) -> None:
    """Fails if a mean of fifty deviations costs a folded norm more precision than it must."""

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
    """Fails if -infinity, whose exponential is 0, is hidden by the loss of the other logits."""

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
    """Fails if a score of -infinity gets no weight, as if it were masked."""

    def enlarge(name: str, array: Array) -> Array:
        return np.full_like(array, {"q": -1e25, "k": 1e25}.get(name, 0))

    shape = SimpleNamespace(**SHAPE)
    with np.errstate(all="ignore"):
        _, matrix, _ = play(device, Bench(STYLES["4x4"], 1, enlarge), lambda b: CASES["scores"].record(b, shape))[0]
    scores = matrix[: 2 * shape.rows].reshape(shape.rows, 2, -1)
    for row in range(shape.rows):
        seen = scores[row, :, : shape.pos + row + 1]
        assert not np.isfinite(seen).any() and not (seen == -np.inf).any()
