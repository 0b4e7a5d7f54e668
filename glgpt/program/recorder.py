"""Records programs: ops append passes on symbolic tensors; `Recorder.program` assigns textures to scratch tensors.

A program has entries: lists of passes that can be called separately. Inside `with recorder.entry(name)`, ops emit the
passes of that entry in order. A scratch tensor is used in one entry. After the last pass that uses the tensor, its
texture is reused for other tensors. Since the recorder assigns all textures, the memory that a program needs is known
before anything runs.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glgpt.errors import GlgptError
from glgpt.program.fusion import (
    SMALL,
    Movable,
    Shape,
    beside_text,
    fused_text,
    merged_samplers,
    sampler_of,
    schedule,
)
from glgpt.program.layout import Layout, View
from glgpt.program.shader import TileRange, accessors, interface, split
from glgpt.program.spec import Entry, Limits, Pass, Program, Texture, check
from glgpt.program.tape import Gradients, Tape, Vjp
from glgpt.program.tensor import Tensor
from glgpt.system.files import data_path

# The fields of the uniform block and their types. Players use the order in a program's JSON, which is sorted by name.
# `pos` is the position of the first token, and `row` the number of the row that is written or read. `draw_seed`,
# `draw_step`, `inverse_temperature`, `margin`, `nucleus_width`, `top_k` and `top_p` are for sampling a token
# (`ops.sample`). The others are for training.
SCALARS = {
    "draw_seed": "int",
    "draw_step": "int",
    "inverse_temperature": "float",
    "lr": "float",
    "margin": "float",
    "nucleus_width": "float",
    "pos": "int",
    "row": "int",
    "seed": "int",
    "step": "int",
    "top_k": "int",
    "top_p": "float",
    "unbias1": "float",
    "unbias2": "float",
}


@dataclass(frozen=True)
class _Draft:
    """A pass whose scratch tensors do not have textures yet.

    `inputs` are pairs (sampler, tensor), and `outputs` are pairs (tensor, layer). The fields of `spec` with the same
    names are empty.
    """

    spec: Pass
    inputs: tuple[tuple[str, Tensor], ...]
    outputs: tuple[tuple[Tensor, int], ...]


@dataclass(frozen=True)
class Cost:
    """The cost of a pass: the number of multiplications and additions, and the bytes of weights that it reads."""

    flops: int = 0
    nbytes: int = 0


@dataclass(frozen=True)
class Window:
    """The part of its outputs that a pass writes: `size` is (width, height) in texels.

    `row` names the scalar that holds the first row to write (None: row 0). Columns before `first_column` are not drawn.
    `keys` (0: not set) is for scores and patterns of attention. In these, a column of texels holds four keys, and only
    the columns of the positions before `pos` + `keys` are drawn.
    """

    size: tuple[int, int]
    row: str | None = None
    first_column: int = 0
    keys: int = 0


@dataclass(frozen=True)
class Region:
    """A range of pixel columns of a blended pass (`Recorder.add_up`).

    `shader`, `inputs` and `defines` are as in `Recorder.emit`; `layout` is the layout of the shader's output.
    """

    shader: str
    inputs: Mapping[str, Tensor]
    layout: Layout
    defines: Mapping[str, int | float | str]


SLICE = "flat in highp int slice_of_k;"  # in a blended pass: the slice's number, equal to the triangle's number


class Recorder:
    """Collects entries into one Program for a device with the given limits."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._fixed: dict[str, Tensor] = {}
        self._float16: set[str] = set()  # names of fixed tensors whose textures hold 16-bit floats
        self._shaders: dict[str, str] = {}
        self._texts: dict[str, tuple[str, str]] = {}  # shader -> (text that fused copies share, the rest)
        self._drafts: dict[str, list[_Draft]] = {}
        self._outputs: dict[str, dict[str, Tensor]] = {}
        self._ping_pong: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self._stored: dict[Tensor, Tensor] = {}
        self._again: dict[Tensor, Callable[[], Tensor]] = {}
        self._current = ""
        self.tape: Tape | None = None

    # -- tensors ------------------------------------------------------------------------------------------------

    def fixed(self, name: str, layout: Layout, role: str, half: bool = False) -> Tensor:
        """Returns the weight, state or input of that name, and creates it at the first call.

        Such a tensor has its own texture. With `half`, the texture rounds the values written to it to 16-bit floats.
        Raises ValueError if the name is recorded with another layout or role.
        """
        if half:
            self._float16.add(name)
        tensor = self._fixed.setdefault(name, Tensor(layout, name, role))
        if tensor.layout != layout or tensor.role != role:
            raise ValueError(f"{name} is already recorded as {tensor}")
        return tensor

    def scratch(self, name: str, layout: Layout) -> Tensor:
        """Returns a new tensor of this entry; a pass must write it before another pass reads it."""
        return Tensor(layout, name)

    # -- entries ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def entry(self, name: str, fused: bool = False) -> Iterator[None]:
        """Records entry `name`, which consists of the passes that are emitted inside the `with` block.

        If `fused`, combines small independent passes (`fusion`).
        """
        self._current = name
        self._drafts[name], self._outputs[name], self._ping_pong[name] = [], {}, []
        yield
        drafts = self._fuse(self._drafts[name]) if fused else self._drafts[name]
        self._drafts[name] = [self._merged(draft) for draft in drafts]
        self._current = ""

    def output(self, tensor: Tensor, name: str | None = None) -> Tensor:
        """Makes a tensor an output of the entry, called `name` (None: the tensor's name), and returns the tensor.

        The entry does not reuse the texture of an output.
        """
        self._outputs[self._current][name or tensor.name] = tensor
        return tensor

    def store(self, tensor: Tensor, name: str) -> Tensor:
        """Turns a scratch tensor of this entry into the state `name`, which outlives the entry; returns the state."""
        self._stored[tensor] = self.fixed(name, tensor.layout, "state")
        return self._stored[tensor]

    def kept(self, name: str) -> Tensor:
        """Returns the weight, state or input of that name, which must already be recorded."""
        return self._fixed[name]

    def ping_pong(self, old: Tensor, new: Tensor) -> None:
        """Swaps the names of two states after each call of this entry, which reads `old` and writes `new`."""
        self._ping_pong[self._current].append((old, new))

    @contextlib.contextmanager
    def taping(self) -> Iterator[Tape]:
        """Yields a new tape, and records the ops inside the `with` block on it."""
        outer, self.tape = self.tape, Tape()
        yield self.tape
        self.tape = outer

    def recomputed(self, function: Callable[[Tensor], Tensor], x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Records y = function(x) without keeping its intermediate tensors for the backward pass (Chen et al. 2016).

        The backward pass computes them again from x. `weights` are the other inputs that get a gradient.
        """
        tape, self.tape = self.tape, None
        y = function(x)
        self.tape = tape
        inputs = (x, *weights)

        def vjp(d: Sequence[Tensor], sums: Gradients) -> Gradients:
            with self.taping() as again:
                z = function(x)
            found = again.backward({t: s for t, s in zip(inputs, sums, strict=True) if s} | {z: d[0]})
            return [found.get(t) for t in inputs]

        self.differentiable(y, inputs, vjp)
        return y

    def not_kept(self, x: Tensor, function: Callable[[], Tensor]) -> None:
        """Marks x for recomputation: x is not stored for the backward pass, which computes x again.

        `function` records the ops that compute x and returns the new tensor. The method `again` calls `function`.
        """
        self._again[x] = function

    def again(self, x: Tensor) -> Tensor:
        """Returns x or, if x is marked by `not_kept`, records x again and returns the new tensor."""
        return self._again[x]() if x in self._again else x

    def differentiable(self, outputs: Tensor | tuple[Tensor, ...], inputs: tuple[Tensor | None, ...], vjp: Vjp) -> None:
        """Records an op and its `vjp` (see `tape.Vjp`) on the tape, if there is one."""
        if self.tape is not None:
            self.tape.note((outputs,) if isinstance(outputs, Tensor) else outputs, inputs, vjp)

    def emit(
        self,
        shader: str,
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
        defines: Mapping[str, int | float | str] | None = None,
        *,
        label: str | None = None,
        columns: int | None = None,
        window: Window | None = None,
        cost: Cost | None = None,
    ) -> None:
        """Appends a pass with the shader `<shader>.frag`, or several if a pass cannot write all layers of the outputs.

        The names of the shader's samplers and STORE macros are made from the keys of `inputs` and `outputs`. Each pass
        writes a range of column tiles of the outputs. If a column tile has more row tiles than a pass can write, a pass
        writes only a range of the row tiles too. `columns` is the maximum number of column tiles in a pass (None: no
        limit). `cost` is the total cost of the passes; each pass gets a share in proportion to its number of tiles.
        `window` is the part of the outputs that a pass writes (None: everything).
        """
        cost = cost or Cost()
        first, layouts = next(iter(outputs.values())), {name: t.layout for name, t in outputs.items()}
        samplers = tuple((f"u_{k}", t) for k, t in inputs.items())
        window = window or Window((first.layout.width, first.layout.height))
        ranges = split(list(layouts.values()), self.limits.max_draw_buffers, columns)
        done, total = 0, sum(tiles.count(first.layout) for tiles in ranges)
        read = tuple((name, t.layout) for name, t in inputs.items())
        given = tuple((name, _literal(value)) for name, value in (defines or {}).items())
        for tiles in ranges:
            key, texts = _written(shader, read, tuple(layouts.items()), given, tiles)
            if key not in self._shaders:
                self._shaders[key], self._texts[key] = "\n".join(texts), texts
            end = done + tiles.count(first.layout)
            flops, nbytes = (n * end // total - n * done // total for n in (cost.flops, cost.nbytes))
            spec = Pass(
                label or first.name,
                key,
                (),
                (),
                window.size,
                window.row,
                flops,
                nbytes,
                first_column=window.first_column,
                keys=window.keys,
            )
            layers = tuple((t, layer) for t in outputs.values() for layer in tiles.layers(t.layout))
            self._drafts[self._current].append(_Draft(spec, samplers, layers))
            done = end

    def add_up(
        self,
        regions: Sequence[Region],
        out: Tensor,
        slices: int,
        label: str,
        *,
        onto: bool,
        pairs: bool,
        cost: Cost,
    ) -> None:
        """Appends a pass that draws the regions next to each other, once for each slice, and adds up the slices.

        `slices` is the number of slices. A slice is drawn as one triangle; devices blend the triangles, and so add the
        slices, in their order. If `onto`, the sums are added to the values of `out`; otherwise they replace these
        values. With `pairs`, a pixel of a region covers two pixels of `out`, and each of these gets half of the
        region's values: see `pair.glsl`.
        """
        shared = _shared_text([out.layout, *(t.layout for region in regions for t in region.inputs.values())])
        texts, inputs = [], []
        for k, region in enumerate(regions):
            read = tuple((name, t.layout) for name, t in region.inputs.items())
            given = tuple((name, _literal(value)) for name, value in region.defines.items())
            texts.append(_written(region.shader, read, (("y", region.layout),), given, TileRange())[1][1])
            inputs += [(sampler_of(f"u_{name}", k), t) for name, t in region.inputs.items()]
        widths, layout = tuple(region.layout.width for region in regions), out.layout
        shared = "\n".join([shared, SLICE, *([shader_source("pair.glsl")] if pairs else [])])
        text = beside_text(shared, tuple(texts), widths, layout.layers, pairs)
        stem = "+".join(dict.fromkeys(region.shader for region in regions))
        spec = Pass(label, self._shader(stem, text), (), (), (layout.width, layout.height))
        spec = replace(spec, slices=slices, clear=not onto, flops=cost.flops, nbytes=cost.nbytes)
        self._drafts[self._current].append(_Draft(spec, tuple(inputs), tuple((out, i) for i in range(layout.layers))))

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Combines the passes that are emitted inside the `with` block into one pass.

        The passes are combined only if they draw the same pixels, use the same storage formats and together fit the
        limits of a pass. No pass in the block may read what another one writes.
        """
        drafts = self._drafts[self._current]
        first = len(drafts)
        yield
        inside = drafts[first:]
        drawn = {
            (d.spec.viewport, d.spec.first_column, d.spec.keys, d.spec.row, self._texts[d.spec.shader][0])
            for d in inside
        }
        outputs, inputs = sum(len(d.outputs) for d in inside), sum(len(d.inputs) for d in inside)
        if len(drawn) == 1 and outputs <= self.limits.max_draw_buffers and inputs <= self.limits.max_texture_units:
            drafts[first:] = [self._fused_draft(inside)]

    def _shader(self, stem: str, text: str) -> str:
        key = _key(stem, text)
        self._shaders[key] = text
        return key

    # -- the result ---------------------------------------------------------------------------------------------

    def program(self) -> Program:
        """Returns the recorded program after checking it. Raises GlgptError if it does not fit the limits."""
        textures = {t.name: Texture(t.name, *_shape(t.layout), t.role) for t in self._fixed.values()}
        textures |= {name: replace(textures[name], format="half") for name in self._float16}
        pool: list[Texture] = []
        entries = {name: self._place(name, pool) for name in self._drafts}
        textures |= {t.name: t for t in pool}
        views = {name: View.of(t.layout, name) for name, t in self._fixed.items()}
        played = {p.shader for entry in entries.values() for p in entry.passes}
        shaders = {key: text for key, text in self._shaders.items() if key in played}
        program = Program(textures, shaders, entries, views, dict(SCALARS))
        check(program, self.limits)
        return program

    def _fuse(self, drafts: list[_Draft]) -> list[_Draft]:
        def shapes(tensors: Iterable[Tensor]) -> dict[Hashable, Shape]:
            held = [self._stored.get(t, t) for t in tensors]
            return {id(t): _shape(t.layout) if t.role == "scratch" else (0, 0, 0, t.role) for t in held}

        passes = [
            Movable(
                draft.spec.shader,
                shapes(t for _, t in draft.inputs),
                shapes(t for t, _ in draft.outputs),
                len(draft.inputs),
                len(draft.outputs),
                fixed=math.prod(draft.spec.viewport) > SMALL
                or draft.spec.row is not None
                or draft.spec.slices + draft.spec.keys > 0,
            )
            for draft in drafts
        ]
        return [self._fused_draft([drafts[i] for i in group]) for group in schedule(passes, self.limits)]

    def _fused_draft(self, drafts: Sequence[_Draft]) -> _Draft:
        if len(drafts) == 1:
            return drafts[0]
        first = drafts[0].spec
        shader = self._shader(first.shader.rsplit("-", 1)[0], self._fused_text(drafts))
        spec = replace(
            first,
            label=", ".join(draft.spec.label for draft in drafts),
            shader=shader,
            flops=sum(draft.spec.flops for draft in drafts),
            nbytes=sum(draft.spec.nbytes for draft in drafts),
        )
        inputs = tuple((sampler_of(name, k), t) for k, draft in enumerate(drafts) for name, t in draft.inputs)
        return _Draft(spec, inputs, tuple(output for draft in drafts for output in draft.outputs))

    def _merged(self, draft: _Draft) -> _Draft:
        """Returns a pass that reads each of its tensors through one sampler."""
        samplers = {t: sampler for sampler, t in reversed(draft.inputs)}
        if len(samplers) == len(draft.inputs):
            return draft
        key, names = draft.spec.shader, tuple((sampler, samplers[t]) for sampler, t in draft.inputs)
        shader = self._shader(key.rsplit("-", 1)[0], merged_samplers(self._shaders[key], names))
        inputs = tuple((sampler, t) for sampler, t in draft.inputs if samplers[t] == sampler)
        return replace(draft, spec=replace(draft.spec, shader=shader), inputs=inputs)

    def _fused_text(self, drafts: Sequence[_Draft]) -> str:
        texts = [self._texts[draft.spec.shader] for draft in drafts]
        return fused_text(texts[0][0], tuple(own for _, own in texts))

    def _place(self, name: str, pool: list[Texture]) -> Entry:
        """Assigns a texture to each scratch tensor of one entry, from a pool of textures that all entries share.

        If no texture of the required shape is free, adds a new one to the pool. Returns the entry.
        """
        drafts, outputs = self._drafts[name], self._outputs[name]
        last: dict[int, int] = {}
        for i, draft in enumerate(drafts):
            for t in [*(t for _, t in draft.inputs), *(t for t, _ in draft.outputs)]:
                last[id(t)] = i
        for t in outputs.values():
            last[id(t)] = len(drafts)
        free: defaultdict[Shape, deque[Texture]] = defaultdict(deque)
        for texture in pool:
            free[_shape_of(texture)].append(texture)
        placed: dict[int, Texture] = {}

        def place(t: Tensor) -> str:
            t = self._stored.get(t, t)
            if t.role != "scratch":
                return t.name
            if id(t) not in placed:
                shape = _shape(t.layout)
                found = free[shape].popleft() if free[shape] else None
                if not found:
                    found = Texture(f"scratch.{len(pool)}", *shape, "scratch")
                    pool.append(found)
                placed[id(t)] = found
            return placed[id(t)].name

        passes = []
        for i, draft in enumerate(drafts):
            ins = tuple((sampler, place(t)) for sampler, t in draft.inputs)
            outs = tuple((place(t), layer) for t, layer in draft.outputs)
            passes.append(replace(draft.spec, inputs=ins, outputs=outs))
            for key in dict.fromkeys(id(t) for t in [*(t for _, t in draft.inputs), *(t for t, _ in draft.outputs)]):
                if key in placed and last[key] == i:
                    free[_shape_of(placed[key])].append(placed[key])
        uploads = {t.name for d in drafts for _, t in d.inputs if t.role == "input"}
        views = {key: View.of(t.layout, place(t)) for key, t in outputs.items()}
        ping_pong = tuple((old.name, new.name) for old, new in self._ping_pong[name])
        return Entry(name, tuple(sorted(uploads)), tuple(passes), views, ping_pong)


def _key(stem: str, text: str) -> str:
    return f"{stem}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@functools.lru_cache(maxsize=1024)  # the blocks of a model have the same shaders
def _written(
    shader: str,
    inputs: tuple[tuple[str, Layout], ...],
    outputs: tuple[tuple[str, Layout], ...],
    defines: tuple[tuple[str, str], ...],
    tiles: TileRange,
) -> tuple[str, tuple[str, str]]:
    """Returns a shader's key in a program, and the two parts of its text.

    The first part has the declarations that all copies in a fused shader share, and the second part has the rest.
    """
    own = [_declarations(inputs, defines), interface(dict(outputs), tiles), shader_source(f"{shader}.frag")]
    texts = _shared_text([layout for _, layout in (*inputs, *outputs)]), "\n".join(own)
    return _key(shader, "\n".join(texts)), texts


def _shape(layout: Layout) -> Shape:
    """Returns the width, height, layers and format of a texture of this layout."""
    return layout.texture_width, layout.texture_height, layout.layers, layout.format.texture


def _shape_of(texture: Texture) -> Shape:
    return texture.width, texture.height, texture.layers, texture.format


def _shared_text(layouts: Iterable[Layout]) -> str:
    """Returns the declarations that the shaders of a fused pass have in common."""
    used = dict.fromkeys(layout.format for layout in layouts)
    return "\n".join(
        [
            shader_source("tensor.glsl"),
            *(shader_source(path) for path in dict.fromkeys(path for fmt in used for path in fmt.includes)),
            f"layout(std140) uniform Scalars {{ {' '.join(f'{t} {n};' for n, t in SCALARS.items())} }};",
        ]
    )


def _declarations(inputs: Iterable[tuple[str, Layout]], defines: Iterable[tuple[str, str]]) -> str:
    """Returns a shader's macros and samplers."""
    macros = [f"#define {name} {value}" for name, value in defines]
    return "\n".join([*macros, *(accessors(name, layout) for name, layout in inputs)])


def _literal(value: int | float | str) -> str:
    if isinstance(value, float):
        text = f"{value:.9g}"
        return text if "." in text or "e" in text else text + ".0"
    return str(value)


@functools.cache
def shader_files() -> dict[str, Path]:
    """Returns the paths of the shaders in the folders of `glsl/`; the keys are file names, which are unique."""
    return {path.name: path for path in data_path("glsl").glob("*/*.*")}


@functools.cache
def shader_source(name: str) -> str:
    """Returns the text of a file of `glsl/`, with the files that it includes. Raises GlgptError for a missing file."""
    try:
        text = shader_files().get(name, data_path("glsl") / name).read_text(encoding="utf-8")
    except OSError as error:
        raise GlgptError(f"shader {name} cannot be read: {error}; reinstall glgpt") from error
    lines = []
    for line in text.splitlines():
        include = line.removeprefix("#include ").strip('"') if line.startswith("#include ") else None
        lines.append(shader_source(include) if include else line)
    return "\n".join(lines)
