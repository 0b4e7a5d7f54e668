"""Plays programs. A program consists of entries, which are named lists of passes (draw calls).

A `Player` builds textures, shaders and framebuffers once; playing an entry then issues a flat list of GL commands.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import moderngl
import numpy as np

from glgpt.errors import GlgptError
from glgpt.gl.device import Device, Options
from glgpt.program.formats import Texels
from glgpt.program.layout import Band, Layout, Matrix
from glgpt.program.spec import Entry, Pass, Program, Texture, check

# Maximum FLOPs of one draw: they take 0.2 s at 50 GFLOPS. Drivers reset a GPU whose draw takes 2 s.
MAX_DRAW_FLOPS = 10_000_000_000
GL_COLOR_BUFFER_BIT = 0x4000
SCALAR_FORMATS = {"int": "i", "float": "f"}


class Player:
    """Plays the entries of one program on one device.

    `shared` maps texture names to textures of another player, such as weights; this player uses them but does not own
    them. A pass (`program.spec.Pass`) of more than `draw_flops` FLOPs is drawn in several ranges of columns, unless it
    has `slices` or a `row`.

    Shaders are compiled when an entry is first prepared or played, so that unused entries cost nothing. `close`
    releases the player's GL objects. If the player is garbage-collected first, the next use of the device releases
    them.

    `on_progress(entry, done, total)` is called while an entry is compiled (the first half of `total`), and while the
    entry is drawn for the first time (the second half), because some drivers compile a shader only at its first use.
    Raises GlgptError if the program does not fit the device.
    """

    def __init__(
        self,
        device: Device,
        program: Program,
        options: Options | None = None,
        shared: Mapping[str, moderngl.TextureArray] | None = None,
        draw_flops: int = MAX_DRAW_FLOPS,
        on_progress: Callable[[str, int, int], object] | None = None,
    ) -> None:
        check(program, device.limits)
        self.device, self.options = device, options or Options()
        self.draw_flops, self._on_progress = draw_flops, on_progress
        self.textures: dict[str, moderngl.TextureArray] = dict(shared or {})
        self.lender: Player | None = None  # owner of shared textures; this reference keeps the owner alive
        self._own: list[Any] = []
        weakref.finalize(self, device.abandon, self._own).atexit = False  # releases GL objects if `close` is not called
        self._shaders: dict[str, moderngl.VertexArray] = {}
        self._framebuffers: dict[object, moderngl.Framebuffer] = {}  # by the textures and layers of a pass's outputs
        self._commands: dict[tuple[str, tuple[bool, ...]], list[Callable[[], Any]]] = {}
        self._arrange(program)

    def _arrange(self, program: Program) -> None:
        """Creates a program's uniform block, and those of its textures that do not exist yet."""
        self.program = program
        self._drawn: set[str] = set()  # names of entries that have been played
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
                    kind = self._stored(t)
                    self.textures[t.name] = self.device.texture(t.name, t.width, t.height, t.layers, kind)
                    self._own.append(self.textures[t.name])
                    if t.role == "state":
                        self.clear(t.name)
        except BaseException:
            self.close()
            raise

    def _stored(self, texture: Texture) -> str:
        """Returns the `kind` that `Device.texture` needs to create a texture of the program."""
        return texture.format if self.options.storage == "float" else "uint"

    def replace(self, program: Program) -> None:
        """Switches to another program.

        Keeps the compiled shaders, and those weights whose textures are the same in both programs; replaces all other
        textures. Raises GlgptError if the program does not fit the device. If memory runs out, the player is closed.
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
        """Uploads texels `[rows, width, 4]` to one layer, starting at its row `y`.

        The texels are uint32 for a uint texture, else float32. Raises ValueError if they do not fit the texture.
        """
        t = self.program.textures[name]
        rows = len(texels)
        if texels.shape[1:] != (t.width, 4) or y + rows > t.height or texels.dtype.itemsize != 4:
            raise ValueError(f"{name}: {texels.shape} from row {y} is not within {(t.height, t.width, 4)}")
        self.use()
        stored = texels.astype(np.float16) if self._stored(t) == "half" else texels
        self.textures[name].write(np.ascontiguousarray(stored), viewport=(0, y, layer, t.width, rows, 1))

    def write_matrix(self, name: str, layout: Layout, matrix: Matrix) -> None:
        """Packs and uploads a matrix in bands (ranges of rows), which avoids a packed copy of the whole matrix."""
        self.write_bands(name, layout.bands(matrix))

    def write_bands(self, name: str, bands: Iterable[Band]) -> None:
        """Uploads bands of a texture: (layer, number of the band's first row, texels) for each."""
        for layer, y, texels in bands:
            self.write(name, layer, texels, y)

    def clear(self, name: str) -> None:
        """Fills a texture with zeros."""
        t = self.program.textures[name]
        for layer in range(t.layers):
            self.write(name, layer, np.zeros((t.height, t.width, 4), np.float32))

    def read(self, name: str) -> Texels:
        """Returns the texels of a whole texture, `[layers, height, width, 4]`; half-precision texels as float32."""
        t = self.program.textures[name]
        self.use()
        data = self.textures[name].read()
        half = self._stored(t) == "half"
        dtype: Any = np.float16 if half else np.uint32 if t.format == "uint" else np.float32
        texels: Texels = np.frombuffer(data, dtype).reshape(t.layers, t.height, t.width, 4)
        return texels.astype(np.float32) if half else texels

    def buffer(self, nbytes: int, what: str) -> moderngl.Buffer:
        """Creates a buffer that is released with this player."""
        self.device.use()
        buffer = self.device.ctx.buffer(reserve=nbytes)
        self.device.live[id(buffer)] = what
        self._own.append(buffer)
        return buffer

    def shared(self, role: str = "weight") -> dict[str, moderngl.TextureArray]:
        """Returns this player's textures of a role, by name. Other players may use them until this player is closed."""
        return {name: t for name, t in self.textures.items() if self.program.textures[name].role == role}

    def fork(self, own: Container[str] = (), given: Mapping[str, moderngl.TextureArray] | None = None) -> Player:
        """Returns a new player of the same program. It shares this player's textures, except those named in `own`.

        The new player creates the textures in `own`, such as the caches of a further text; textures in `given` replace
        this player's textures of the same names. This player must not be closed before the new one.
        """
        shared = {name: t for name, t in self.textures.items() if name not in own} | dict(given or {})
        return Player(self.device, self.program, self.options, shared, self.draw_flops)

    # -- playing ------------------------------------------------------------------------------------------------

    def play(self, entry: str, **scalars: float) -> None:
        """Plays an entry once. Returns while the driver is still working, and reads nothing back.

        `scalars` sets some of the program's scalars, the numbers in its uniform block; the others keep their previous
        values.
        """
        self.use()
        commands = self.prepare(entry)
        if scalars:
            packed = self._scalar_struct.pack(*(self.scalars | scalars).values())
            self.scalars.update(scalars)  # after packing, which raises for a number out of range
            self._block.write(packed)
        self._block.bind_to_uniform_block(0)
        self.device.ctx.disable(moderngl.BLEND)  # blending is still enabled if an interrupt ended `_add_up`
        for command in commands if entry in self._drawn else self._first(entry, commands):
            command()
        self._drawn.add(entry)
        for old, new in self.program.entries[entry].ping_pong:
            self.textures[old], self.textures[new] = self.textures[new], self.textures[old]
            self._swapped[self._pairs[old]] ^= True

    def _first(self, entry: str, commands: list[Callable[[], Any]]) -> Iterator[Callable[[], Any]]:
        """Yields the commands of an entry that is played for the first time.

        Reports the second half of the progress; `_build` has reported the first half.
        """
        for i, command in enumerate(commands, 1):
            yield command
            if self._on_progress:
                self._on_progress(entry, len(commands) + i, 2 * len(commands))

    def prepare(self, entry: str) -> list[Callable[[], Any]]:
        """Returns the commands of an entry. The first call compiles the entry's shaders; `play` calls this method.

        A ping-pong pair is two textures whose names are swapped after each call of an entry that lists the pair. Each
        entry has a list of commands for each combination of swapped and unswapped pairs among its textures.
        """
        found = self.entry(entry)
        key = (entry, tuple(self._swapped[i] for i in self._touched[entry]))
        if key not in self._commands:
            self.use()
            self._commands[key] = self._build(found)
        return self._commands[key]

    def use(self) -> None:
        """Makes the device's context the current one. Raises GlgptError if this player is closed."""
        if not self.textures:
            raise GlgptError("this model is closed; load it again")
        self.device.use()

    def _pairs_of(self, entry: Entry) -> set[int]:
        names = {t for p in entry.passes for t in (*(t for _, t in p.inputs), *(t for t, _ in p.outputs))}
        return {self._pairs[name] for name in names if name in self._pairs}

    def finish(self) -> None:
        """Waits until the driver has completed all commands."""
        self.use()
        self.device.ctx.finish()

    def _build(self, entry: Entry) -> list[Callable[[], Any]]:
        commands: list[Callable[[], Any]] = []
        bound: dict[int, str] = {}
        clear = self.device.gl("glClear", None, ctypes.c_uint)
        for i, p in enumerate(entry.passes):
            if self._on_progress and entry.name not in self._drawn:
                self._on_progress(entry.name, i, 2 * len(entry.passes))
            vertex_array = self._shader(p)
            for unit, (_, name) in enumerate(p.inputs):
                if bound.get(unit) != name:
                    commands.append(partial(self.textures[name].use, unit))
                    bound[unit] = name
            framebuffer = self._framebuffer(p)
            wide, high, first = self.device.covering(*p.viewport)
            use = partial(self._use, framebuffer, (0, 0, wide, high))
            draw = partial(vertex_array.render, moderngl.TRIANGLES, 3, first=first, instances=p.slices or 1)
            if p.slices:
                use_all = partial(use, self._scissor(p))
                commands.append(partial(self._add_up, self.device.ctx, clear, use_all, draw, p))
            elif p.row is None:
                commands += self._draws(p, use, draw)
            else:
                commands += [partial(self._at_row, self.scalars, framebuffer, p, (wide, high)), draw]
        return commands

    def _draws(self, p: Pass, use: Callable[..., None], draw: Callable[[], Any]) -> list[Callable[[], Any]]:
        width, height = p.viewport[0] - p.first_column, p.viewport[1]
        columns = min(width, -(-p.flops // self.draw_flops))
        if columns <= 1 and p.keys:
            return [partial(self._to_position, self.scalars, use, p), draw]
        if columns <= 1:
            return [partial(use, self._scissor(p)), draw]
        commands: list[Callable[[], Any]] = []
        for i in range(columns):
            left, right = (p.first_column + k * width // columns for k in (i, i + 1))
            commands += [partial(use, (left, 0, right - left, height)), draw]
        return commands

    def _scissor(self, p: Pass) -> tuple[int, int, int, int] | None:
        """Returns the rectangle (x, y, width, height) that a pass draws, or None if it draws all of each target."""
        targets = (self.program.textures[name] for name, _ in p.outputs)
        if not p.first_column and all((t.width, t.height) == p.viewport for t in targets):
            return None
        return p.first_column, 0, p.viewport[0] - p.first_column, p.viewport[1]

    @staticmethod  # commands must not refer to the player: a reference cycle delays the release of GL objects
    def _use(framebuffer: Any, viewport: tuple[int, int, int, int], scissor: tuple[int, int, int, int] | None) -> None:
        framebuffer.viewport, framebuffer.scissor = viewport, scissor
        framebuffer.use()

    @staticmethod
    def _to_position(scalars: Mapping[str, float], use: Callable[..., None], p: Pass) -> None:
        width, height = p.viewport
        use((0, 0, min(width, -(-(int(scalars["pos"]) + p.keys) // 4)), height))

    @staticmethod
    def _at_row(
        scalars: Mapping[str, float], framebuffer: moderngl.Framebuffer, p: Pass, covering: tuple[int, int]
    ) -> None:
        row = int(scalars[p.row or ""])
        framebuffer.viewport, framebuffer.scissor = (0, row, *covering), (0, row, *p.viewport)
        framebuffer.use()

    @staticmethod
    def _add_up(
        ctx: moderngl.Context,
        clear: Callable[..., Any],
        use: Callable[[], None],
        draw: Callable[[], Any],
        p: Pass,
    ) -> None:
        use()
        if p.clear:
            clear(GL_COLOR_BUFFER_BIT)
        ctx.enable_only(moderngl.BLEND)
        draw()
        ctx.enable_only(moderngl.NOTHING)

    def _shader(self, p: Pass) -> moderngl.VertexArray:
        if p.shader not in self._shaders:
            samplers = [sampler for sampler, _ in p.inputs]
            made = self.device.shader(p.shader, self.program.shaders[p.shader], samplers, self.options)
            self._own.append(made)
            self._shaders[p.shader] = made.vertex_array
        return self._shaders[p.shader]

    def _framebuffer(self, p: Pass) -> moderngl.Framebuffer:
        """Returns the framebuffer of a pass's outputs.

        Passes with the same outputs share a framebuffer, because drivers batch consecutive draws to one framebuffer.
        """
        key = tuple((id(self.textures[t]), layer) for t, layer in p.outputs)
        if key not in self._framebuffers:
            framebuffer = self.device.framebuffer([(self.textures[t], layer) for t, layer in p.outputs])
            self._own.append(framebuffer)
            self._framebuffers[key] = framebuffer
        return self._framebuffers[key]

    def close(self) -> None:
        """Releases the GL objects that this player owns, but not shared textures. Closing twice is harmless."""
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
        """Returns the entry with this name. Raises GlgptError if the program has none."""
        if name not in self.program.entries:
            raise GlgptError(f"the program has no entry {name!r}; it has {', '.join(self.program.entries)}")
        return self.program.entries[name]
