"""Records the cases of the self-test, on the desktop (`glgpt selftest`) and in the page (`#selftest`).

    PYTHONPATH=tests python tests/selftest/record_suite.py    rewrites glgpt/selftest/suite.json.gz

Run it after a change of an op's passes or of a case in `tests/cases`. A change of a shader's file alone needs no run:
the suite stores a reference to the file. `test_selftest.py` checks that the suite is current.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from cases import EVERY, SHAPE, VJPS
from cases.backward import backward
from helpers.op_bench import Bench, Style, unpacked
from helpers.reference_training import slope
from numpy.typing import NDArray

from glgpt import ops
from glgpt.gl.device import Options
from glgpt.program.formats import FORMATS
from glgpt.program.layout import Layout, View
from glgpt.program.recorder import SCALARS
from glgpt.program.spec import Limits
from glgpt.selftest.suite import SCHEMA, STEP, SUITE, passes_json, shortened

Array = NDArray[Any]
TINY = SHAPE | {
    **{"rows": 6, "cols": 14, "inner": 10, "vocab": 21, "pos": 3, "d4": 1, "spare": 1, "tensors": 3, "texts": 3},
    **{"positions": 12, "width": 12, "row": 2, "d_head": 6, "batch": 2, "at": 5, "per": 1},
}
WIDE = TINY | {"inner": 36, "cols": 18, "vocab": 18}  # two groups of rows; the rows of a group share a scale
FOUR = Limits(max_draw_buffers=4)  # the limit that every WebGL2 device has
HOW = Options("300 es")
PLAIN = {
    "f32": Style((4, 1), "f32", HOW, FOUR),
    "f16": Style((4, 2), "f16", HOW, FOUR),
}
EIGHT = {"f32, 8 targets": Style((8, 1), "f32", HOW), "f16, 8 targets": Style((8, 2), "f16", HOW)}
WEIGHTS = {name: Style((4, 2), "f16", HOW, FOUR, name) for name in ("q8", "q4", "q5_1", "q4_k", "q5_k", "q6_k", "q2_k")}
PRODUCTS = ("matmul", "few_rows", "head_row", "embed_tokens")  # cases that read weights of a narrow format
GRADIENTS_F16 = ("matmul", "split matmul", "attend", "scores", "norm", "act", "embed", "split_qkv")
TARGETS = ("matmul", "norm", "softmax")
ONLY_F32 = (
    "blended_row",
    "sample",
    "mask_logits",
    "argmax",
    "gradient_norm",
    "gradient_norm_scaled",
    "adamw",
    "normal",
)
PROPERTIES = ("denormals",)  # cases in which a device may give either of two results
SLOPE_ERROR = 1e-8  # error of a central difference


class Rounded:
    """A random generator whose normally distributed numbers are multiples of 1 / `STEP`."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def standard_normal(self, size: Any) -> Array:
        return np.round(self._rng.standard_normal(size) * STEP) / STEP

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rng, name)


def bench(style: Style) -> Bench:
    found = Bench(style)
    found.rng = Rounded(3)  # type: ignore[assignment]
    return found


@dataclass(frozen=True)
class Output:
    """The expected values of a texture, in the order of its texels. NaN accepts any value."""

    name: str
    view: View
    expected: Array
    atol: float
    rtol: float


def places(view: View, whole: bool = False) -> Array:
    """Returns for each value of a matrix its index among the values of all texels. `whole`: padding is included."""
    layout = Layout(view.rows, view.cols, view.tiles, view.dtype)
    count = layout.layers * layout.texture_height * layout.texture_width * layout.format.values_per_texel
    numbers = np.arange(count, dtype=np.float32)
    found = []
    for part in (numbers // 1024, numbers % 1024):  # a float16 holds integers up to 2,048
        shape = (layout.layers, layout.texture_height, layout.texture_width, -1)
        texels = layout.format.pack(part.reshape(shape))
        found.append(unpacked(layout, texels)[int(whole)])
    return (found[0] * 1024 + found[1]).astype(int)


def output(name: str, view: View, where: Array, expected: Array, near: tuple[float, float], zero: Array) -> Output:
    layout = Layout(view.rows, view.cols, view.tiles, view.dtype)
    count = layout.layers * layout.texture_height * layout.texture_width * layout.format.values_per_texel
    values = np.full(count, np.nan)
    values[zero.ravel()] = 0
    values[where.ravel()] = np.clip(expected.ravel(), -3.4e38, 3.4e38)
    held, rtol = values.astype(np.float32), near[1] * layout.format.spacing
    if layout.format.packed:  # 14 bits of the fraction suffice, and take less space
        held = (held.view(np.uint32) + 256 & 0xFFFFFE00).view(np.float32)
    return Output(name, view, held, near[0], rtol)


def forward(b: Bench, case: str, s: SimpleNamespace) -> list[Output]:
    """Records an op; returns the expected values of its outputs."""
    with b.entry("test"):
        wants = EVERY[case].record(b, s)
        for i, want in enumerate(wants):
            b.output(want.tensor, str(i))
    views = b.program().entries["test"].outputs
    found = []
    for i, want in enumerate(wants):
        view, (atol, k) = views[str(i)], EVERY[case].near
        fmt = FORMATS[view.dtype]
        if fmt.packed:  # numbers below 2^-14 have a spacing of 2^-24
            atol += k * 2.0**-25
        if want.summed is not None:
            atol += FORMATS["f16"].spacing / 2 * float(want.summed.max())
        where, beyond = places(view), places(view, whole=True)
        where = want.read(where) if want.read else where
        if where.dtype.kind != "i":  # `read` computes new numbers from several values, which the suite cannot express
            continue
        zero = beyond[: len(where), view.cols :] if not want.bare else beyond[:0]
        found.append(output(want.tensor.name, view, where, want.expected, (atol, k), zero))
    return found


def gradients(b: Bench, case: str, s: SimpleNamespace) -> list[Output]:
    """Records an op and its backward pass; returns the expected values of the gradients."""
    with b.entry("test"):
        recorded = backward(b, case, s)
    taped, views = recorded.taped, b.program().entries["test"].outputs
    values = {name: b.held[x.name] for name, x in taped.inputs.items()}
    dys = [dy[: len(y)] for dy, y in zip(recorded.dys, taped.function(**values), strict=True)]
    atol, k = VJPS[case].near
    atol += VJPS[case].halves * b.style.format.packed
    found = []
    for name, value in values.items():
        view, rows = views[name], taped.rows.get(name, len(value))
        wanted = recorded.so_far.get(name, np.zeros(value.shape)).copy()
        for at in np.ndindex(rows, value.shape[1]):
            direction = np.zeros(value.shape)
            direction[at] = 1
            wanted[at] += slope(taped.function, values, name, direction, dys)
        where, beyond = places(view), places(view, whole=True)
        zero = beyond[:rows, view.cols :]
        rounded = FORMATS["f16"].spacing * float(np.abs(recorded.so_far.get(name, np.zeros(1))).max())
        # A gradient is added to `so_far`. If the two nearly cancel, the error is still in proportion to `so_far`.
        near = atol + SLOPE_ERROR + rounded * b.style.format.packed, k
        found.append(output(f"d.{name}", view, where[:rows], wanted[:rows], near, zero))
    return found


def denormals(b: Bench) -> list[Output]:
    """Records a sum of numbers below the smallest normal one, which some devices replace by zero."""
    with b.entry("test"):
        x, z = (b.given(name, np.full((1, 4), 2.0**-130)) for name in "xz")
        y = b.output(ops.add(b, x, z, x.layout, "y"), "0")
    view = b.program().entries["test"].outputs["0"]
    where = places(view)
    return [output(y.name, view, where, np.full((1, 4), 2.0**-129), (2.0**-140, 0), where[:0])]


class Writer:
    """Collects cases; equal arrays and equal shaders are stored once."""

    def __init__(self) -> None:
        self.arrays: dict[tuple[str, str], int] = {}
        self.shaders: dict[str, str] = {}
        self.cases: list[dict[str, Any]] = []

    def add(self, op: str, style: str, b: Bench, s: SimpleNamespace, outputs: list[Output]) -> None:
        program = b.program()
        entry = program.entries["test"]
        # Skips a case whose shaders all occur in earlier cases, for example in a case of another format.
        if program.shaders.keys() <= self.shaders.keys() and op not in PROPERTIES:
            return
        for key, text in program.shaders.items():
            self.shaders.setdefault(key, shortened(text))
        inputs, passes = {}, passes_json(program, "test")
        used = {texture[0] for texture in passes["textures"]}
        for name, array in b.arrays.items():
            if name not in used:
                continue
            layout = b.fixed_layout(name)
            inputs[name] = self._array(layout.pack(array))
        self.cases.append(
            {
                "op": op,
                "format": style,
                "shape": shape_text(s, b),
                "targets": max(len(p.outputs) for p in entry.passes),
                "scalars": {"pos": b.pos, "row": b.row, **b.more},
                "inputs": inputs,
                "outputs": [
                    [o.name, o.view.texture, o.view.dtype, self._array(o.expected), float(f"{o.atol:.4g}"), o.rtol]
                    for o in outputs
                ],
                **passes,
                **({"property": op} if op in PROPERTIES else {}),
            }
        )

    def _array(self, values: Array) -> int:
        if values.dtype == np.uint32:
            kind, data = "u", values
        elif (
            (small := values.astype(np.float64) * STEP).size and (np.abs(small) < 127).all() and (small % 1 == 0).all()
        ):
            kind, data = "e", small.astype(np.int8)
        else:
            kind, data = "f", values.astype(np.float32)
        text = base64.b64encode(np.ascontiguousarray(data).tobytes()).decode()
        return self.arrays.setdefault((kind, text), len(self.arrays))

    def document(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "scalars": SCALARS,
            "shaders": self.shaders,
            "arrays": list(self.arrays),
            "cases": self.cases,
        }


def shape_text(s: SimpleNamespace, b: Bench) -> str:
    """Returns the shapes of the first three arrays that the op reads, such as `x 6 x 14`."""
    layouts = {name: b.fixed_layout(name) for name in b.arrays}
    return ", ".join(f"{name} {layout.rows} x {layout.cols}" for name, layout in list(layouts.items())[:3])


SHAPES = {
    # `blended_row` has sizes of 32, 64 or 96; these values give 32. Not all devices can add up pairs of pixels.
    "blended_row": {"inner": 12, "cols": 12, "pairs": False},
    "attend_row": {"pos": 40, "least": 16},  # enough keys for several ranges, also in the next line
    "attend_rows": {"positions": 40, "least": 16},
    "gradient_norm": {"tensors": 17},  # more tensors than one pass reads
}


def wanted() -> Iterator[tuple[str, str, Style, dict[str, Any]]]:
    """Yields (case, name of the format, style, shape) of every case of the suite."""
    for case in EVERY:
        yield case, "f32", PLAIN["f32"], TINY | SHAPES.get(case, {})
        if case not in ONLY_F32:
            yield case, "f16", PLAIN["f16"], TINY
    for name, style in WEIGHTS.items():
        for case in PRODUCTS:
            yield case, name, style, WIDE
    for name, style in EIGHT.items():
        for case in TARGETS:
            yield case, name, style, TINY


@functools.cache
def document() -> dict[str, Any]:
    """Returns the suite."""
    writer = Writer()
    for case, name, style, shape in wanted():
        b, s = bench(style), SimpleNamespace(**shape)
        writer.add(case, name, b, s, forward(b, case, s))
    for case in VJPS:
        for name, style in PLAIN.items():
            if name == "f16" and case not in GRADIENTS_F16:
                continue
            b, s = bench(style), SimpleNamespace(**TINY)
            writer.add(f"{case.removeprefix('families ')} gradient", name, b, s, gradients(b, case, s))
    b = bench(PLAIN["f32"])
    writer.add("denormals", "f32", b, SimpleNamespace(), denormals(b))
    return writer.document()


if __name__ == "__main__":
    text = json.dumps(document(), separators=(",", ":"))
    SUITE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    found = document()
    print(len(found["cases"]), "cases", len(found["shaders"]), "shaders", SUITE.stat().st_size, "bytes")
