"""Playing a program: textures, shaders and framebuffers are built once, then a call is a flat list of GL commands."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from typing import Any

import moderngl
import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.gl.device import Device, Options
from glgpt.program.formats import Texels
from glgpt.program.layout import Layout
from glgpt.program.spec import Entry, Pass, Program, check

DRAW_FLOPS = 10_000_000_000  # the most one draw may cost: 0.2 s at 50 GFLOPS, far from the 2 s at which drivers reset
BAND_BYTES = 8 << 20  # of an upload
SCALAR_FORMATS = {"int": "i", "float": "f"}


class Player:
    """Plays the entries of one program on one device.

    `shared` maps texture names to textures of another player (weights, caches) that this one uses but does not own.
    Shaders are compiled when an entry is first played, so that a caller pays for what it uses. What a player made is
    released by `close`, or, once nobody holds it, when the device is next used.
    `on_progress` is called while an entry is compiled and first drawn, which is when some drivers compile, with the
    entry's name, how much of that is done, and how much there is.
    Raises GlgptError if the program does not fit the device.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        options: Options | None = None,
        shared: Mapping[str, moderngl.TextureArray] | None = None,
        draw_flops: int = DRAW_FLOPS,
        on_progress: Callable[[str, int, int], object] | None = None,
    ) -> None:
        check(program, device.limits)
        self.device, self.options = device, options or Options()
        self.draw_flops, self._on_progress = draw_flops, on_progress
        self.textures: dict[str, moderngl.TextureArray] = dict(shared or {})
        self._own: list[Any] = []
        weakref.finalize(self, device.abandon, self._own).atexit = False  # where nobody closes it
        self._shaders: dict[str, moderngl.VertexArray] = {}
        self._framebuffers: dict[object, moderngl.Framebuffer] = {}
        self._commands: dict[tuple[str, tuple[bool, ...]], list[Callable[[], Any]]] = {}
        self._arrange(program)

    def _arrange(self, program: Program) -> None:
        """Makes what a program needs beyond the textures that are there."""
        self.program = program
        self._drawn: set[str] = set()  # entries
        pairs = dict.fromkeys(pair for e in program.entries.values() for pair in e.ping_pong)
        self._pairs = {name: i for i, pair in enumerate(pairs) for name in pair}
        self._swapped = [False] * len(pairs)
        self._touched = {name: sorted(self._pairs_of(e)) for name, e in program.entries.items()}
        self.scalars: dict[str, float] = dict.fromkeys(program.scalars, 0)
        self._scalar_struct = struct.Struct("<" + "".join(SCALAR_FORMATS[k] for k in program.scalars.values()))
        self.device.use()
        try:
            self._block = self.buffer(max(16, -(-4 * len(program.scalars) // 16) * 16), "uniform block")
            for t in program.textures.values():
                if t.name not in self.textures:
                    kind = "float" if t.format == "float" and self.options.storage == "float" else "uint"
                    self.textures[t.name] = self.device.texture(t.name, t.width, t.height, t.layers, kind)
                    self._own.append(self.textures[t.name])
                    if t.role == "state":
                        self.clear(t.name)
        except BaseException:
            self.close()
            raise

    def replace(self, program: Program) -> None:
        """Plays another program from now on: weights of the same shape and compiled shaders stay, all else is new.

        Raises GlgptError if it does not fit the device; one that runs out of memory closes the player.
        """
        self.use()
        check(program, self.device.limits)
        old = self.program.textures
        kept = {n for n, t in program.textures.items() if t.role == "weight" and n in self.textures and old[n] == t}
        textures = (t for name, t in self.textures.items() if name not in kept)
        gone = {id(x) for x in (*textures, *self._framebuffers.values(), self._block)}
        self.device.release(*(x for x in reversed(self._own) if id(x) in gone))
        self._own[:] = [x for x in self._own if id(x) not in gone]
        self.textures = {name: t for name, t in self.textures.items() if name in kept}
        self._framebuffers, self._commands = {}, {}
        self._arrange(program)

    # -- data ---------------------------------------------------------------------------------------------------

    def write(self, name: str, layer: int, texels: Texels, y: int = 0) -> None:
        """Uploads rows y.. of one layer, `[rows, width, 4]`, float32 or uint32 as the texture's format says."""
        t = self.program.textures[name]
        rows = len(texels)
        if texels.shape[1:] != (t.width, 4) or y + rows > t.height or texels.dtype.itemsize != 4:
            raise ValueError(f"{name}: {texels.shape} from row {y} is not within {(t.height, t.width, 4)}")
        self.use()
        self.textures[name].write(np.ascontiguousarray(texels), viewport=(0, y, layer, t.width, rows, 1))

    def write_matrix(self, name: str, layout: Layout, matrix: NDArray[np.floating]) -> None:
        """Packs and uploads a matrix in bands, so that no whole copy of it is ever made."""
        band = max(1, BAND_BYTES // (layout.texture_width * 16))
        for layer in range(layout.layers):
            for y in range(0, layout.texture_height, band):
                self.write(name, layer, layout.layer(matrix, layer, y, band), y)

    def clear(self, name: str) -> None:
        """Fills a texture with zeros."""
        t = self.program.textures[name]
        for layer in range(t.layers):
            self.write(name, layer, np.zeros((t.height, t.width, 4), np.float32))

    def read(self, name: str) -> Texels:
        """A whole texture, `[layers, height, width, 4]`."""
        t = self.program.textures[name]
        self.use()
        data = self.textures[name].read()
        dtype: Any = np.float32 if t.format == "float" else np.uint32
        texels: Texels = np.frombuffer(data, dtype).reshape(t.layers, t.height, t.width, 4)
        return texels

    def buffer(self, nbytes: int, what: str) -> moderngl.Buffer:
        """A buffer that is released with this player."""
        self.device.use()
        buffer = self.device.ctx.buffer(reserve=nbytes)
        self.device.live[id(buffer)] = what
        self._own.append(buffer)
        return buffer

    def shared(self, role: str = "weight") -> dict[str, moderngl.TextureArray]:
        """This player's textures of a role, for another player to use while this one lives."""
        return {name: t for name, t in self.textures.items() if self.program.textures[name].role == role}

    def fork(self, own: Container[str] = (), given: Mapping[str, moderngl.TextureArray] | None = None) -> Player:
        """A player of the same program with this one's textures, but for `own`, which are new and its own.

        `given` are used in place of this one's textures of these names. This one must outlive it. Several texts so
        share the weights of a model, each with caches of its own.
        """
        shared = {name: t for name, t in self.textures.items() if name not in own} | dict(given or {})
        return Player(self.device, self.program, self.options, shared, self.draw_flops)

    # -- playing ------------------------------------------------------------------------------------------------

    def play(self, entry: str, **scalars: float) -> None:
        """Plays an entry once. Nothing is read back and nothing waits: the driver works on while Python returns."""
        self.use()
        commands = self.prepare(entry)
        if scalars:
            packed = self._scalar_struct.pack(*(self.scalars | scalars).values())
            self.scalars.update(scalars)  # after packing, which raises for a number that does not fit
            self._block.write(packed)
        self._block.bind_to_uniform_block(0)
        for command in commands if entry in self._drawn else self._first(entry, commands):
            command()
        self._drawn.add(entry)
        for old, new in self.program.entries[entry].ping_pong:
            self.textures[old], self.textures[new] = self.textures[new], self.textures[old]
            self._swapped[self._pairs[old]] ^= True

    def _first(self, entry: str, commands: list[Callable[[], Any]]) -> Iterator[Callable[[], Any]]:
        """Yields the commands, and reports the second half of what playing an entry for the first time takes."""
        for i, command in enumerate(commands, 1):
            yield command
            if self._on_progress:
                self._on_progress(entry, len(commands) + i, 2 * len(commands))

    def prepare(self, entry: str) -> list[Callable[[], Any]]:
        """Compiles what an entry needs and lays out its commands, once; `play` does this itself if need be.

        There is one list of commands for each combination of which of the entry's ping-pong buffers are the old ones.
        """
        found = self.entry(entry)
        key = (entry, tuple(self._swapped[i] for i in self._touched[entry]))
        if key not in self._commands:
            self.use()
            self._commands[key] = self._build(found)
        return self._commands[key]

    def use(self) -> None:
        """Makes the device's context the current one. Raises GlgptError once this player is closed."""
        if not self.textures:
            raise GlgptError("this model is closed; load or make it again")
        self.device.use()

    def _pairs_of(self, entry: Entry) -> set[int]:
        names = {t for p in entry.passes for t in (*(t for _, t in p.inputs), *(t for t, _ in p.outputs))}
        return {self._pairs[name] for name in names if name in self._pairs}

    def finish(self) -> None:
        """Waits until the driver has done everything."""
        self.use()
        self.device.ctx.finish()

    def _build(self, entry: Entry) -> list[Callable[[], Any]]:
        commands: list[Callable[[], Any]] = []
        bound: dict[int, str] = {}
        for i, p in enumerate(entry.passes):
            if self._on_progress and entry.name not in self._drawn:
                self._on_progress(entry.name, i, 2 * len(entry.passes))
            vertex_array = self._shader(p)
            for unit, (_, name) in enumerate(p.inputs):
                if bound.get(unit) != name:
                    commands.append(partial(self.textures[name].use, unit))
                    bound[unit] = name
            framebuffer = self._framebuffer(p)
            draw = partial(vertex_array.render, moderngl.TRIANGLES, 3)
            if p.row is None:
                commands += self._draws(p, framebuffer, draw)
            else:
                commands += [partial(self._at_row, self.scalars, framebuffer, p), draw]
        return commands

    def _draws(self, p: Pass, framebuffer: moderngl.Framebuffer, draw: Callable[[], Any]) -> list[Callable[[], Any]]:
        width, height = p.viewport
        columns = min(width, -(-p.flops // self.draw_flops))
        if columns <= 1:
            return [framebuffer.use, draw]
        commands: list[Callable[[], Any]] = []
        for i in range(columns):
            left, right = i * width // columns, (i + 1) * width // columns
            commands += [partial(self._band, framebuffer, (left, 0, right - left, height)), draw]
        return [*commands, partial(setattr, framebuffer, "scissor", None)]

    @staticmethod
    def _band(framebuffer: moderngl.Framebuffer, scissor: tuple[int, int, int, int]) -> None:
        framebuffer.scissor = scissor
        framebuffer.use()

    @staticmethod  # as all commands: a player that holds itself would live until the garbage collector comes
    def _at_row(scalars: Mapping[str, float], framebuffer: moderngl.Framebuffer, p: Pass) -> None:
        framebuffer.viewport = (0, int(scalars[p.row or ""]), *p.viewport)
        framebuffer.use()

    def _shader(self, p: Pass) -> moderngl.VertexArray:
        if p.shader not in self._shaders:
            samplers = [sampler for sampler, _ in p.inputs]
            made = self.device.shader(p.shader, self.program.shaders[p.shader], samplers, self.options)
            self._own.append(made)
            self._shaders[p.shader] = made.vertex_array
        return self._shaders[p.shader]

    def _framebuffer(self, p: Pass) -> moderngl.Framebuffer:
        key = (tuple((id(self.textures[t]), layer) for t, layer in p.outputs), p.viewport, p.row)
        if key not in self._framebuffers:
            framebuffer = self.device.framebuffer([(self.textures[t], layer) for t, layer in p.outputs])
            framebuffer.viewport = (0, 0, *p.viewport)
            self._own.append(framebuffer)
            self._framebuffers[key] = framebuffer
        return self._framebuffers[key]

    def close(self) -> None:
        """Releases every GL object this player made; shared textures stay. Closing twice is harmless."""
        self.device.use()
        self.device.release(*reversed(self._own))
        self._own.clear()
        self.textures, self._commands = {}, {}
        self._shaders, self._framebuffers = {}, {}

    def __enter__(self) -> Player:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def entry(self, name: str) -> Entry:
        """The entry of that name. Raises GlgptError where the program has none."""
        if name not in self.program.entries:
            raise GlgptError(f"the program has no entry {name!r}; it has {', '.join(self.program.entries)}")
        return self.program.entries[name]
