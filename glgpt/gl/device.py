"""Opens GL contexts, reads their limits, and creates the GL objects of players: textures, shaders and framebuffers."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import moderngl

from glgpt.errors import ArgumentError, DeviceError, TextureError, quoted, written
from glgpt.gl.shader_cache import enable_shader_cache
from glgpt.program.spec import Limits
from glgpt.system.signals import deferred

SOFTWARE = ("llvmpipe", "softpipe", "swiftshader", "swrast")
GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0, GL_FRAMEBUFFER_COMPLETE = 0x8D40, 0x8CE0, 0x8CD5
# GL_NICEST requests one derivative for each row and each column of a 2 x 2 quad, instead of one for the whole quad.
GL_FRAGMENT_SHADER_DERIVATIVE_HINT, GL_NICEST = 0x8B8B, 0x1102
HEADERS = {"300 es": "#version 300 es\n", "330": "#version 330\n"}
PACKING = "#extension GL_ARB_shading_language_packing : require\n"  # adds packHalf2x16, which GLSL ES has built in
VERTEX = """
// One triangle, computed from gl_VertexID. Vertices 0 to 2 cover the viewport; 3 to 5 are corners of the viewport and
// cover half of it: see `Device.covering`.
void main() {
  float far = gl_VertexID < 3 ? 3.0 : 1.0;
  gl_Position = vec4(gl_VertexID % 3 == 1 ? far : -1.0, gl_VertexID % 3 == 2 ? far : -1.0, 0.0, 1.0);
}
"""
INSIDE = 3  # first vertex of the triangle that lies inside the viewport
# The vertex shader of blended passes. Each instance draws the triangle of one slice of K, the inner dimension of a
# matrix product, and passes the slice's number to the fragment shader.
SLICED_VERTEX = "flat out int slice_of_k;" + VERTEX.replace("{", "{\n  slice_of_k = gl_InstanceID;", 1)


@dataclass(frozen=True)
class Options:
    """Defines how shaders are built on a device.

    `header` is a key of `HEADERS`. `fetch` is the GLSL function that reads texels, texelFetch or textureLod. `storage`
    is "float", or "uint" if float texels are stored as bits in RGBA32UI. With `packing`, shaders convert float16 with
    packHalf2x16 and unpackHalf2x16; without it, they use integer operations.
    """

    header: str = "300 es"
    fetch: str = "texelFetch"
    storage: str = "float"
    packing: bool = True


@dataclass(eq=False)
class Shader:
    """A compiled shader and its vertex array, shared by all players of a device that use the same shader text."""

    key: object
    program: Any
    vertex_array: moderngl.VertexArray
    uses: int = 0  # number of players that use it


class Device:
    """A GL context and its capabilities, shared by all models that one thread opens on a device (see `open_device`)."""

    def __init__(self, ctx: moderngl.Context, index: int | None) -> None:
        self.ctx, self.index = ctx, index
        self.renderer: str = ctx.info["GL_RENDERER"]
        self.version: str = ctx.info["GL_VERSION"]
        self.software = any(name in self.renderer.lower() for name in SOFTWARE)
        self.limits = Limits(
            ctx.info["GL_MAX_TEXTURE_SIZE"],
            ctx.info["GL_MAX_ARRAY_TEXTURE_LAYERS"],
            min(ctx.info["GL_MAX_DRAW_BUFFERS"], ctx.info["GL_MAX_COLOR_ATTACHMENTS"]),
            ctx.info["GL_MAX_TEXTURE_IMAGE_UNITS"],
            ctx.info["GL_MAX_UNIFORM_BLOCK_SIZE"],
        )
        self._max_viewport: int = min(ctx.info["GL_MAX_VIEWPORT_DIMS"])
        self.live: dict[int, str] = {}  # Python id of each unreleased GL object -> its description
        self.texture_bytes = 0
        self._abandoned: deque[list[Any]] = deque()
        self._gl: dict[str, Callable[..., Any]] = {}
        self._shaders: dict[object, Shader] = {}
        self.header = "300 es" if self._compiles("300 es") else "330"
        self.packing = self.header == "300 es" or self._compiles("330", PACKING)  # if False, shaders need NO_PACKING
        self._thread = threading.get_ident()
        _here.current = self  # a new context is the current one
        ctx.disable(moderngl.BLEND | moderngl.DEPTH_TEST | moderngl.CULL_FACE)
        ctx.blend_func = moderngl.ONE, moderngl.ONE
        self.gl("glHint", None, ctypes.c_uint, ctypes.c_uint)(GL_FRAGMENT_SHADER_DERIVATIVE_HINT, GL_NICEST)

    def gl(self, name: str, restype: Any, *argtypes: Any) -> Callable[..., Any]:
        """Returns a GL function that moderngl does not wrap, found by the context's loader."""
        if name not in self._gl:
            address = self.ctx.mglo._context.load(name)
            kind = getattr(ctypes, "WINFUNCTYPE", ctypes.CFUNCTYPE)  # GL is stdcall on Windows
            self._gl[name] = kind(restype, *argtypes)(address)
        return self._gl[name]

    def covering(self, width: int, height: int) -> tuple[int, int, int]:
        """Returns a viewport's width and height, and the first vertex of a triangle that covers `width` x `height`.

        The vertex shader `VERTEX` computes the triangle. Mesa's software drivers clip a triangle that extends beyond
        the viewport into two triangles. They shade a block of 4 x 4 pixels twice if both triangles touch it: in a small
        target, a quarter to a half of the blocks. For these drivers, the result is a viewport of twice the width and
        height, and a triangle inside it, unless this viewport exceeds the driver's limit. Otherwise, the viewport is
        `width` x `height`, and the triangle extends beyond it. In both cases, the framebuffer or the scissor limits the
        drawn pixels to `width` x `height`.
        """
        if self.software and 2 * max(width, height) <= self._max_viewport:
            return 2 * width, 2 * height, INSIDE
        return width, height, 0

    def _compiles(self, header: str, extension: str = "") -> bool:
        """True if the driver compiles a shader that begins with `HEADERS[header]` and the line `extension`.

        Some desktop drivers lack GLSL ES or the extension.
        """
        text = HEADERS[header] + extension + "precision highp float;\nout vec4 y;\nvoid main() { y = vec4(0.0); }\n"
        try:
            with deferred():  # moderngl crashes if an exception interrupts the creation of a program
                self.ctx.program(vertex_shader=HEADERS[header] + VERTEX, fragment_shader=text).release()
        except moderngl.Error:
            self.ctx.clear_errors()
            return False
        return True

    def preamble(self, options: Options) -> str:
        """Returns the lines that precede a shader's text."""
        lines = [HEADERS[options.header]]
        if not options.packing:
            lines.append("#define NO_PACKING\n")
        elif options.header == "330":
            lines.append(PACKING)
        if options.fetch == "textureLod":
            lines.append("#define FETCH_LOD\n")
        if options.storage == "uint":
            lines.append("#define STORAGE_UINT\n")
        return "".join(lines)

    def compile(self, name: str, text: str, options: Options) -> moderngl.Program:
        """Compiles one shader. Raises DeviceError, with the driver's message and the source line, on an error."""
        preamble = self.preamble(options)
        vertex = SLICED_VERTEX if "slice_of_k;" in text else VERTEX
        try:
            with deferred():  # moderngl crashes if an exception interrupts the creation of a program
                program = self.ctx.program(
                    vertex_shader=HEADERS[options.header] + vertex, fragment_shader=preamble + text
                )
        except moderngl.Error as error:
            raise DeviceError(_shader_error(name, preamble + text, str(error))) from error
        self.live[id(program)] = f"program {name}"
        return program

    def shader(self, name: str, text: str, samplers: Sequence[str], options: Options) -> Shader:
        """Returns a shader whose sampler `samplers[i]` reads texture unit i.

        Players that request the same text share a shader. The shader's GL objects are released when all players that
        requested the shader have released it.
        """
        key = (self.preamble(options) + text, tuple(samplers))
        if key not in self._shaders:
            program: Any = self.compile(name, text, options)
            for unit, sampler in enumerate(samplers):
                if sampler in program:  # drivers remove unused samplers
                    program[sampler].value = unit
            if "Scalars" in program:
                program["Scalars"].binding = 0
            vertex_array = self.ctx.vertex_array(program, [])
            self.live[id(vertex_array)] = f"vertex array of {name}"
            self._shaders[key] = Shader(key, program, vertex_array)
        self._shaders[key].uses += 1
        return self._shaders[key]

    def texture(self, name: str, width: int, height: int, layers: int, kind: str) -> moderngl.TextureArray:
        """Creates a 2D-array texture that is sampled with NEAREST and CLAMP_TO_EDGE.

        `kind` is float (RGBA32F), half (RGBA16F) or uint (RGBA32UI). Raises TextureError if the driver refuses the
        texture.
        """
        dtype = {"float": "f4", "half": "f2", "uint": "u4"}[kind]
        try:
            texture = self.ctx.texture_array((width, height, layers), 4, dtype=dtype)
        except moderngl.Error as error:
            raise _refused(name, width, height, layers, str(error)) from error
        trouble = self.ctx.error
        if trouble != "GL_NO_ERROR":  # moderngl does not check for this error, which reports a lack of memory
            texture.release()
            raise _refused(name, width, height, layers, trouble)
        texture.filter = (moderngl.NEAREST, moderngl.NEAREST)
        texture.repeat_x = texture.repeat_y = False
        self.live[id(texture)] = f"texture {name}"
        self.texture_bytes += _nbytes(texture)
        return texture

    def framebuffer(self, attachments: list[tuple[moderngl.TextureArray, int]]) -> moderngl.Framebuffer:
        """Creates a framebuffer whose colour attachments are single layers of 2D-array textures.

        Raises DeviceError if the driver cannot render to these attachments together.
        """
        uint, enum, glint, glsizei = ctypes.c_uint, ctypes.c_uint, ctypes.c_int, ctypes.c_int
        name = uint()
        self.gl("glGenFramebuffers", None, glsizei, ctypes.POINTER(uint))(1, ctypes.byref(name))
        self.gl("glBindFramebuffer", None, enum, uint)(GL_FRAMEBUFFER, name)
        attach = self.gl("glFramebufferTextureLayer", None, enum, enum, uint, glint, glint)
        for i, (texture, layer) in enumerate(attachments):
            attach(GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0 + i, texture.glo, 0, layer)
        buffers = (enum * len(attachments))(*(GL_COLOR_ATTACHMENT0 + i for i in range(len(attachments))))
        self.gl("glDrawBuffers", None, glsizei, ctypes.POINTER(enum))(len(attachments), buffers)
        status = self.gl("glCheckFramebufferStatus", enum, enum)(GL_FRAMEBUFFER)
        if status != GL_FRAMEBUFFER_COMPLETE or self.ctx.error != "GL_NO_ERROR":
            self._delete_framebuffer(name)
            raise DeviceError(f"the driver cannot render to {len(attachments)} textures at once (status {status:#x})")
        framebuffer = self.ctx.detect_framebuffer(name.value)
        self.ctx.clear_errors()  # moderngl queries sizes that only a window's framebuffer has, which raises a GL error
        self.live[id(framebuffer)] = "framebuffer"
        return framebuffer

    def release(self, *objects: Any) -> None:
        """Releases GL objects that this device created."""
        for item in objects:
            if isinstance(item, Shader):
                item.uses -= 1
                if not item.uses:
                    del self._shaders[item.key]
                    self.release(item.vertex_array, item.program)
                continue
            if self.live.pop(id(item), None) is None:
                continue
            if isinstance(item, moderngl.TextureArray):
                self.texture_bytes -= _nbytes(item)
            if isinstance(item, moderngl.Framebuffer):  # moderngl does not release a detected framebuffer
                self._delete_framebuffer(ctypes.c_uint(item.glo))
            else:
                item.release()

    def abandon(self, objects: list[Any]) -> None:
        """Schedules GL objects for release at the next use of the device.

        Finalizers call this: they may run in another thread, in which the context is not current.
        """
        self._abandoned.append(objects)

    def _delete_framebuffer(self, name: ctypes.c_uint) -> None:
        self.gl("glDeleteFramebuffers", None, ctypes.c_int, ctypes.POINTER(ctypes.c_uint))(1, ctypes.byref(name))

    def use(self) -> None:
        """Makes this device's context the current one and releases abandoned objects.

        The context stays current afterwards, because each switch flushes the driver's commands. Raises DeviceError in a
        forked process, and in any thread other than the one that opened the device: a context can be current in one
        thread only.
        """
        _check_process()
        if _here.current is not self:
            if threading.get_ident() != self._thread:
                raise DeviceError(
                    "a model or trainer can only be used in the thread that loaded it; load another one in this thread"
                )
            self.ctx.__enter__()  # type: ignore[no-untyped-call]
            _here.current = self
        while self._abandoned:
            self.release(*reversed(self._abandoned.popleft()))


def _nbytes(texture: moderngl.TextureArray) -> int:
    return texture.width * texture.height * texture.layers * texture.components * int(texture.dtype[1])


def _shader_error(name: str, text: str, message: str) -> str:
    lines = text.splitlines()
    found = re.search(r"\b\d+[:(](\d+)[^\n]*error", message)
    where = ""
    if found and 0 < int(found[1]) <= len(lines):
        where = f"; line {found[1]} is: {lines[int(found[1]) - 1].strip()}"
    said = [line for line in message.splitlines() if "error" in line.lower()] or message.splitlines()
    return f"shader {name} does not compile: {'; '.join(said[:3])}{where}"


class _Here(threading.local):
    """The devices of one thread: a GL context can be current in one thread only."""

    def __init__(self) -> None:
        self.open: dict[tuple[int, str | None], Device] = {}
        self.current: Device | None = None  # the device whose context is the thread's current one


_here = _Here()
_process = 0  # id of the process that opened a context; 0: no context was opened yet


def _check_process() -> None:
    """Raises DeviceError in a process that was forked after a context was opened: a fork lacks the driver's threads."""
    if _process not in (0, os.getpid()):
        raise DeviceError(
            "OpenGL does not survive a fork: this process was forked from one that had loaded a model; "
            'load models only after forking, or start processes with multiprocessing.get_context("spawn")'
        )


def _refused(name: str, width: int, height: int, layers: int, why: str) -> TextureError:
    """Returns the error for a texture that the driver refused."""
    return TextureError(
        f"the driver refused texture {name}, {width} x {height} x {layers} ({why})",
        "use a smaller model, --dtype f16, q8 or q4, or --device software",
    )


def _create(index: int) -> Device:
    global _process
    _process = os.getpid()
    enable_shader_cache()
    if sys.platform.startswith("linux"):
        egl: dict[str, Any] = {"backend": "egl", "device_index": index}
        return Device(moderngl.create_context(standalone=True, require=330, **egl), index)
    return Device(moderngl.create_context(standalone=True, require=330), None)


def list_devices() -> list[Device | str]:
    """Opens and returns all EGL devices, in order; on other systems than Linux, only the default OpenGL device.

    For a device that does not open, the list has the error message instead.
    """
    return list(_devices())


def _devices() -> Iterator[Device | str]:
    for index in range(_egl_devices() if sys.platform.startswith("linux") else 1):
        try:
            yield _device(index)
        except DeviceError as error:
            yield str(error)


def _egl_devices() -> int:
    """Returns the number of EGL devices; 1 if EGL cannot be queried, so that opening the first device reports why."""
    enable_shader_cache()
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return 1
    egl.eglGetProcAddress.restype, egl.eglGetProcAddress.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    address = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    if not address:
        return 1
    found = ctypes.c_int()
    query = ctypes.CFUNCTYPE(ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))(address)
    return found.value if query(0, None, ctypes.byref(found)) else 1


def _device(index: int) -> Device:
    key = (index, os.environ.get("LIBGL_ALWAYS_SOFTWARE"))
    if key not in _here.open:
        try:
            _here.open[key] = _create(index)
        except Exception as error:  # moderngl and glcontext raise many types
            raise DeviceError(f"{_named(index)} does not open: {error}") from error
    return _here.open[key]


def _named(index: int | None) -> str:
    """Names a device in a message. Outside Linux, only the system's default device can be opened."""
    return f"EGL device {index}" if sys.platform == "linux" else "the default OpenGL device"


def open_device(select: str | int = "auto") -> Device:
    """Returns the selected device, and opens it if needed.

    `select` is "software" or "gpu" (the first device of that kind), "auto" (a GPU if there is one), or an EGL device
    index. Raises ArgumentError for another value. Raises DeviceError if the selected device does not exist or does not
    open, and in a process that was forked after a device was opened.
    """
    _check_process()
    if str(select).isdecimal():
        try:
            return _device(int(select))
        except DeviceError:
            found = list_devices()
            if int(select) < len(found):
                raise
        listed = ", ".join(d if isinstance(d, str) else f"{d.index}: {d.renderer}" for d in found)
        raise DeviceError(
            f"EGL device {written(int(select))} does not exist; use --device auto, or one of these: {listed}"
        )
    if select not in ("auto", "software", "gpu"):
        raise ArgumentError(
            f"device {quoted(repr(select))} is not auto, software, gpu or an EGL device index (see glgpt info)"
        )
    tried: list[str] = []
    fallback: Device | None = None
    for device in _devices():
        if isinstance(device, str):
            tried.append(device)
        elif device.software == (select == "software"):
            return device
        else:
            tried.append(f"{_named(device.index)} is {device.renderer}")
            fallback = fallback or device
    if select == "auto" and fallback:
        return fallback
    hint = "install Mesa's software driver (Debian, Ubuntu: apt install libegl1 libgl1-mesa-dri)"
    if select == "gpu":
        hint = "use --device software, or install the GPU's OpenGL driver"
    kind = "OpenGL" if select == "auto" else select
    raise DeviceError(f"no {kind} device: {'; '.join(tried) or 'EGL lists no devices'}; {hint}")
