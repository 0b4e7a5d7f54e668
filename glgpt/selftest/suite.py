"""Reads the recorded cases of the self-test: passes, inputs, expected values and tolerances of every op.

`tests/selftest/record_suite.py` records `suite.json.gz` from the cases of the tests. In its shaders, a line such as
`@norm.frag` stands for a file of `glsl/`. Such a line is replaced by the file of the installed package, so the
self-test tests the installed shaders. `report.document` adds these files to the document as `sources`. The page has
another document, with all lines of the shaders; `viewer/src/runtime/selftest/suite.ts` reads that document.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.program.formats import FORMATS
from glgpt.program.recorder import shader_files, shader_source
from glgpt.program.spec import Entry, Pass, Program, Texture

Array = NDArray[Any]
SCHEMA = 1
SUITE = Path(__file__).with_name("suite.json.gz")
ENTRY = "test"
REFERENCE = re.compile(r"^@(\S+)$", re.MULTILINE)
MIN_SHARED = 60  # shaders refer to files of at least this many characters, and contain the text of shorter files
STEP = 8  # an array of kind "e" has multiples of 1/8; the file stores each value times this number, as int8


@dataclass(frozen=True)
class Expected:
    """The expected values of a texture, in the order of its texels; where NaN is expected, any value is accepted.

    A value may be off by `atol + rtol * |expected|`.
    """

    name: str
    texture: str
    dtype: str
    values: Array
    atol: float
    rtol: float

    def errors(self, texels: Array) -> tuple[float, float, float]:
        """Compares texels with the expected values.

        Returns (error, allowed error, error / allowed error) of the value with the largest error / allowed error.
        """
        ours = FORMATS[self.dtype].unpack(texels).ravel().astype(np.float64)
        wanted = self.values.astype(np.float64)
        counts = ~np.isnan(wanted)
        ours, wanted = ours[counts], wanted[counts]
        error = np.abs(ours - wanted)
        error[~np.isfinite(ours)] = np.inf
        allowed = self.atol + self.rtol * np.abs(wanted)
        excess = np.where(error > 0, error / np.maximum(allowed, 1e-300), 0.0)
        at = int(np.argmax(excess))
        return float(error[at]), float(allowed[at]), float(excess[at])


@dataclass(frozen=True)
class Case:
    """An op with given inputs. `targets` is the number of draw buffers that the op's largest pass needs.

    A case with a `property` shows a property of the device and never counts as a failure: "denormals" shows whether the
    device keeps numbers below 2^-126.
    """

    op: str
    format: str
    shape: str
    targets: int
    scalars: dict[str, float]
    program: Program
    inputs: dict[str, Array]
    expected: tuple[Expected, ...]
    property: str = ""


def read_document() -> dict[str, Any]:
    """Returns the recorded document, without the field `sources`."""
    found: dict[str, Any] = json.loads(gzip.decompress(SUITE.read_bytes()))
    return found


def shortened(text: str) -> str:
    """Replaces the text of each of `_files` in a shader by a reference, such as `@norm.frag`."""
    for name, source in _files():
        if source in text:
            text = text.replace(source, f"@{name}")
    return text


@functools.cache
def _files() -> list[tuple[str, str]]:
    """Returns the files of `glsl/` with at least `MIN_SHARED` characters, the longest first."""
    files = {name: shader_source(name) for name in ["tensor.glsl", *shader_files()]}
    long = [(name, text) for name, text in files.items() if len(text) >= MIN_SHARED]
    return sorted(long, key=lambda file: -len(file[1]))


def sources(shaders: dict[str, str]) -> dict[str, str]:
    """Returns the text of each file that these shaders refer to."""
    names = {name for text in shaders.values() for name in REFERENCE.findall(text)}
    return {name: shader_source(name) for name in sorted(names)}


def whole(document: dict[str, Any]) -> dict[str, str]:
    """Returns the shaders of a document, with each reference replaced by the text of its file."""
    files = document["sources"]
    return {key: REFERENCE.sub(lambda found: files[found[1]], text) for key, text in document["shaders"].items()}


def cases(document: dict[str, Any]) -> list[Case]:
    """Returns the cases of a document."""
    arrays, shaders = [_array(*each) for each in document["arrays"]], whole(document)
    return [_case(each, shaders, arrays, document["scalars"]) for each in document["cases"]]


def passes_json(program: Program, entry: str) -> dict[str, Any]:
    """Returns the textures and passes of an entry, in the form that a case has in a document."""
    played = program.entries[entry]
    used = {name for p in played.passes for name in (*dict(p.inputs).values(), *(name for name, _ in p.outputs))}
    textures = [t for t in program.textures.values() if t.name in used]
    return {
        "textures": [[t.name, t.width, t.height, t.layers, t.format, t.role] for t in textures],
        "uploads": played.inputs,
        "passes": [
            [p.label, p.shader, p.inputs, p.outputs, p.viewport, p.row, p.slices, p.clear, p.first_column, p.keys]
            for p in played.passes
        ],
        "ping_pong": played.ping_pong,
    }


def program_from(each: dict[str, Any], shaders: dict[str, str], scalars: dict[str, str]) -> Program:
    """Returns a program with a single entry, which has the textures and passes of `each` (see `passes_json`)."""
    textures = {t[0]: Texture(*t) for t in each["textures"]}
    passes = tuple(
        Pass(
            label,
            shader,
            _pairs(inputs),
            _pairs(outputs),
            tuple(viewport),
            row,
            slices=slices,
            clear=clear,
            first_column=first_column,
            keys=keys,
        )
        for label, shader, inputs, outputs, viewport, row, slices, clear, first_column, keys in each["passes"]
    )
    entry = Entry(ENTRY, tuple(each["uploads"]), passes, {}, _pairs(each["ping_pong"]))
    return Program(textures, {p.shader: shaders[p.shader] for p in passes}, {ENTRY: entry}, {}, scalars)


def _array(kind: str, text: str) -> Array:
    data = base64.b64decode(text)
    if kind == "e":
        return np.frombuffer(data, np.int8).astype(np.float32) / STEP
    return np.frombuffer(data, np.uint32 if kind == "u" else np.float32)


def _case(each: dict[str, Any], shaders: dict[str, str], arrays: list[Array], scalars: dict[str, str]) -> Case:
    return Case(
        each["op"],
        each["format"],
        each["shape"],
        each["targets"],
        each["scalars"],
        program_from(each, shaders, scalars),
        {name: arrays[at] for name, at in each["inputs"].items()},
        tuple(Expected(name, t, dtype, arrays[at], a, r) for name, t, dtype, at, a, r in each["outputs"]),
        each.get("property", ""),
    )


def _pairs(lists: list[list[Any]]) -> Any:
    return tuple((first, second) for first, second in lists)
