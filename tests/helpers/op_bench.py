"""Records one op on given arrays, plays it in one of several styles, and compares its results with the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cases import EVERY
from cases.case import Want
from numpy.typing import NDArray

from glgpt import ops
from glgpt.gl.device import Device, Options
from glgpt.gl.player import Player
from glgpt.program.formats import FORMATS, Format
from glgpt.program.layout import Layout, fold, one_layer, texels
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits
from glgpt.program.tensor import Tensor
from helpers import reference as ref

Array = NDArray[Any]
Change = Callable[[str, Array], Array]
EPS = FORMATS["f32"].spacing


@dataclass(frozen=True)
class Style:
    """The tiling and storage of tensors with many rows, the way shaders are built, and the device's limits.

    `weights` is the format of weights if it differs from `dtype`.
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
    """Records and plays the op; returns (wanted, its matrix, all values of its texture) for each result."""
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
    """Compares a result with the reference, and checks that columns beyond the matrix are zero."""
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
