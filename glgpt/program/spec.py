"""Defines a recorded program as plain data that any player can play.

A `Program` lists textures, shaders and entries; an `Entry` is a sequence of fragment-shader passes. A player runs a
program on a device: the desktop has one for OpenGL, and the page has one for WebGL2. `check` rejects programs that
would read undefined texels or that WebGL would reject, so that players need not check anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

from glgpt.errors import GlgptError, quoted, written
from glgpt.program.layout import View

SCHEMA: Final = 2
TEXTURE_FORMATS = ("float", "half", "uint")
MAX_SLICES = 4096  # maximum number of triangles in a pass that adds up slices
ROLES = ("weight", "state", "input", "scratch")
TEXEL_BYTES = 16
HALF_TEXEL_BYTES = 8


@dataclass(frozen=True)
class Texture:
    """A 2D-array texture with four numbers in each texel.

    `format`: "float" is RGBA32F, or the bits of floats in RGBA32UI if the device cannot render to RGBA32F; "uint" is
    RGBA32UI; "half" is RGBA16F, or the same as "float" if the device cannot render to RGBA16F. Shaders read and write
    "half" like "float". `role`: a weight is uploaded once; a state is zero at first and persists between calls of
    entries; an input is uploaded before a call; scratch is undefined between calls.
    """

    name: str
    width: int
    height: int
    layers: int
    format: str
    role: str

    @property
    def nbytes(self) -> int:
        """Returns the size in bytes."""
        return self.width * self.height * self.layers * (HALF_TEXEL_BYTES if self.format == "half" else TEXEL_BYTES)


@dataclass(frozen=True)
class Pass:
    """One draw call, which draws one triangle unless there are `slices`.

    `inputs` are pairs (sampler, texture), in the order of the texture units. `outputs` are pairs (texture, layer), in
    the order of the colour attachments. `viewport` is (width, height) in texels; it begins at row 0, or at the row in
    the runtime scalar that `row` names. Columns of the viewport before `first_column` are not drawn. Several passes may
    draw parts of the same outputs, from left to right; each begins at the column at which the previous one ended, and
    no pass reads columns that are not drawn yet. With `keys`, a column holds four keys of attention, and only the
    columns of the positions before `pos` + `keys` are drawn and read (0: all columns). The cost of the pass is `flops`
    (multiplications and additions) and `nbytes` (bytes of weights read).

    With `slices`, this many triangles are drawn, one after the other, and each adds its colours to the outputs. If
    `clear` is set, the outputs are zero before the first triangle. The shader reads the number of the triangle from
    `slice_of_k`. A pass with `slices` or `row` draws all columns of its viewport.
    """

    label: str
    shader: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, int], ...]
    viewport: tuple[int, int]
    row: str | None = None
    flops: int = 0
    nbytes: int = 0
    slices: int = 0
    clear: bool = False
    first_column: int = 0
    keys: int = 0


@dataclass(frozen=True)
class Entry:
    """A callable part of a program.

    To call it, a player uploads `inputs`, sets the scalars, plays `passes`, and reads `outputs` (name -> view).
    `ping_pong` are pairs of textures (old, new): the passes read the old texture and write the new one. After the
    entry, the two textures swap names, so that the next call reads the new values under the old texture's name.
    """

    name: str
    inputs: tuple[str, ...]
    passes: tuple[Pass, ...]
    outputs: dict[str, View]
    ping_pong: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Program:
    """Textures, shaders (name -> GLSL without a version line) and entries.

    `views` describes the matrix in each weight, state and input, by the texture's name. `scalars` are the fields
    of the uniform block in their order (name -> GLSL type).
    """

    textures: dict[str, Texture]
    shaders: dict[str, str]
    entries: dict[str, Entry]
    views: dict[str, View]
    scalars: dict[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    def to_json(self) -> str:
        """Returns the program as JSON; equal programs give equal text."""
        return json.dumps(self, default=vars, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Reads the output of `to_json`. Raises GlgptError for another schema version or a malformed document."""

        from pydantic import TypeAdapter, ValidationError  # imported here, since players do not need it

        try:
            data = json.loads(text)
            if data["schema"] != SCHEMA:
                found = written(data["schema"])
                raise GlgptError(f"program: schema {found} is not {SCHEMA}; export it again with this version")
            return TypeAdapter(cls).validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = quoted(".".join(map(str, first["loc"])), 200)
            raise GlgptError(f"program: not a glgpt program: {where}: {quoted(first['msg'])}") from None
        except (KeyError, TypeError, AttributeError, RecursionError, json.JSONDecodeError) as error:
            raise GlgptError(f"program: not a glgpt program: {quoted(repr(error), 200)}") from error

    def digest(self) -> str:
        """Returns the SHA-256 of the program's JSON, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def nbytes(self, roles: Iterable[str] = ROLES) -> int:
        """Returns the number of bytes of the textures that have one of the given roles."""
        wanted = set(roles)
        return sum(t.nbytes for t in self.textures.values() if t.role in wanted)


@dataclass(frozen=True)
class Limits:
    """The limits of a device. If no device is given, programs are built for the defaults."""

    max_texture_size: int = 4096
    max_layers: int = 256
    max_draw_buffers: int = 8
    max_texture_units: int = 16
    max_uniform_block: int = 16384


def check(program: Program, limits: Limits | None = None) -> None:
    """Raises GlgptError if a device with these limits cannot play the program correctly.

    The error says what is wrong, and in which entry and pass (if in any). Examples are an unknown texture or shader, a
    texture that a pass both samples and writes, a layer that is read before it is written, an output that is written
    only in part, and an exceeded limit.
    """
    limits = limits or Limits()
    for t in program.textures.values():
        name = quoted(t.name)
        if t.format not in TEXTURE_FORMATS or t.role not in ROLES:
            raise GlgptError(f"program: texture {name} has format {written(t.format)} and role {written(t.role)}")
        if min(t.width, t.height, t.layers) < 1:
            raise GlgptError(f"program: texture {name} is empty ({t.width} x {t.height} x {t.layers})")
        if max(t.width, t.height) > limits.max_texture_size or t.layers > limits.max_layers:
            raise GlgptError(
                f"program: texture {name} is {t.width} x {t.height} x {t.layers}, "
                f"beyond {limits.max_texture_size} squared x {limits.max_layers}"
            )
    if 4 * len(program.scalars) > limits.max_uniform_block:
        raise GlgptError(f"program: {len(program.scalars)} scalars do not fit a uniform block")
    kept = {(t.name, i) for t in program.textures.values() if t.role in ("weight", "state") for i in range(t.layers)}
    for entry in program.entries.values():
        _check_entry(program, entry, limits, kept)


def _check_entry(program: Program, entry: Entry, limits: Limits, kept: set[tuple[str, int]]) -> None:
    textures, drawn = program.textures, _Drawn(entry, program.textures, kept)
    for name in entry.inputs:
        if name not in textures or textures[name].role not in ("input", "state"):
            _fail(entry, f"{name} cannot be uploaded")
    for i, p in enumerate(entry.passes):
        here = f"pass {i} ({p.label})"
        _check_names(program, entry, p, here)
        if len(p.inputs) > limits.max_texture_units or not 1 <= len(p.outputs) <= limits.max_draw_buffers:
            _fail(entry, f"{here}: {len(p.inputs)} inputs and {len(p.outputs)} outputs exceed the limits")
        for _, name in p.inputs:
            if any(name == out for out, _ in p.outputs):
                _fail(entry, f"{here}: {name} is sampled while attached")
            if not drawn.has(name):
                _fail(entry, f"{here}: {name} is read before it was written")
        for name, layer in p.outputs:
            _check_output(entry, p, textures[name], layer, here)
            drawn.draw(p, name, layer, here)
    drawn.end()
    _check_ping_pong(entry, textures)
    for view in entry.outputs.values():
        if view.texture not in textures:
            _fail(entry, f"output {view.texture} is not a texture")
        if not drawn.has(view.texture):
            _fail(entry, f"output {view.texture} is never written")


class _Drawn:
    """Tracks which layers of textures an entry has written so far, and at which column a partly drawn layer ends.

    `kept` are the layers of weights and states, as pairs (texture, layer). They and the inputs of the entry count as
    written before the entry begins.
    """

    def __init__(self, entry: Entry, textures: Mapping[str, Texture], kept: set[tuple[str, int]]) -> None:
        self._entry, self._textures = entry, textures
        self._ends: dict[tuple[str, int], tuple[int, str]] = {}
        inputs = (textures[name] for name in entry.inputs if name in textures)
        self._written = kept | {(t.name, layer) for t in inputs for layer in range(t.layers)}

    def has(self, name: str) -> bool:
        """True if all layers of a texture are written completely."""
        layers = self._textures[name].layers
        return (name, 0) in self._written if layers == 1 else self._written.issuperset((name, i) for i in range(layers))

    def draw(self, p: Pass, name: str, layer: int, here: str) -> None:
        """Records that a pass writes a layer.

        Raises GlgptError if the pass adds to a layer that is not written, or if an earlier pass drew a part of the
        layer and this pass does not begin at the column at which that part ended. The first part of a layer may begin
        at any column, since no pass reads the columns to the left of the first part.
        """
        key, t = (name, layer), self._textures[name]
        if p.slices and not p.clear and key not in self._written:
            _fail(self._entry, f"{here}: adds to {name} before it was written")
        if self._ends.pop(key, (p.first_column, here))[0] != p.first_column:
            _fail(self._entry, f"{here}: {name} is written only in part")
        self._written.add(key)
        if t.role != "state" and p.viewport[0] < t.width:
            self._written.remove(key)
            self._ends[key] = p.viewport[0], here

    def end(self) -> None:
        """Raises GlgptError if a layer is drawn only in part at the end of the entry."""
        for (name, _), (_, here) in self._ends.items():
            _fail(self._entry, f"{here}: {name} is written only in part")


def _fail(entry: Entry, what: str) -> NoReturn:
    raise GlgptError(quoted(f"program: entry {entry.name}, {what}", 600))


def _check_names(program: Program, entry: Entry, p: Pass, here: str) -> None:
    """Raises GlgptError if a pass names a texture, shader or scalar that the program lacks."""
    for name in [t for _, t in p.inputs] + [t for t, _ in p.outputs]:
        if name not in program.textures:
            _fail(entry, f"{here}: unknown texture {name}")
    if p.shader not in program.shaders:
        _fail(entry, f"{here}: unknown shader {p.shader}")
    for scalar in (p.row, "pos" if p.keys else None):
        if scalar is not None and scalar not in program.scalars:
            _fail(entry, f"{here}: unknown scalar {scalar}")


def _check_output(entry: Entry, p: Pass, t: Texture, layer: int, here: str) -> None:
    """Raises GlgptError if a pass cannot write this layer of a texture, or must write all of it but does not."""
    if t.role == "weight":
        _fail(entry, f"{here}: {t.name} is a weight and cannot be written")
    if not 0 <= layer < t.layers or p.viewport[0] > t.width or p.viewport[1] > t.height:
        _fail(entry, f"{here}: {t.name} has no layer {layer} of {p.viewport[0]} x {p.viewport[1]}")
    if not 0 <= p.slices <= MAX_SLICES:
        _fail(entry, f"{here}: {p.slices} slices; at most {MAX_SLICES} are supported")
    if p.slices and p.row is not None:
        _fail(entry, f"{here}: {p.slices} slices must be 0 in a pass with a row")
    if not 0 <= p.first_column < p.viewport[0]:
        _fail(entry, f"{here}: first column {p.first_column} is not one of its {p.viewport[0]} columns")
    if p.first_column and (p.row is not None or p.slices):
        _fail(entry, f"{here}: first column {p.first_column} must be 0 in a pass with a row or slices")
    if p.keys < 0 or (p.keys and (p.row is not None or p.slices or p.first_column)):
        _fail(
            entry, f"{here}: {p.keys} keys must be 0 in a pass with a row, slices or a first column, and never negative"
        )
    if p.slices and t.format != "float":
        _fail(entry, f"{here}: adds to {t.name}, whose texels are not 32-bit floats")
    in_part = p.viewport[0] != t.width and p.slices > 0
    if t.role != "state" and (p.row is not None or p.viewport[1] != t.height or in_part):
        _fail(entry, f"{here}: {t.name} is written only in part")


def _check_ping_pong(entry: Entry, textures: Mapping[str, Texture]) -> None:
    """Raises GlgptError unless each ping-pong pair is two states of the same shape and format.

    Also raises GlgptError if the entry writes the old state, or does not write the new state completely.
    """
    drawn = {target for p in entry.passes for target in p.outputs}
    whole = {
        (name, layer)
        for p in entry.passes
        for name, layer in p.outputs
        if p.row is None and p.viewport == (textures[name].width, textures[name].height)
    }
    for old, new in entry.ping_pong:
        a, b = textures.get(old), textures.get(new)
        if a is None or b is None or (a.role, b.role) != ("state", "state") or replace(a, name=new) != b:
            _fail(entry, f"{old} and {new} are not two states of one shape, as a ping-pong pair must be")
        if any((new, layer) not in whole or (old, layer) in drawn for layer in range(b.layers)):
            _fail(entry, f"{new} replaces {old} but is not written completely")
