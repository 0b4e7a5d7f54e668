"""Tests opening devices, and the GL objects that devices create."""

from __future__ import annotations

import ctypes
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import moderngl
import numpy as np
import pytest

from glgpt.errors import DeviceError, GlgptError
from glgpt.gl import device as gl_device
from glgpt.gl.device import HEADERS, Device, Options, list_devices, open_device
from glgpt.program.spec import Limits

TEXT = "precision highp float;\nlayout(location = 0) out vec4 y;\nvoid main() { y = vec4(%s); }\n"


def test_the_software_device_is_one_and_stays_open() -> None:
    """Fails if each model opens its own context."""
    device = open_device("software")
    assert device.software and open_device("software") is device
    assert open_device(str(device.index)) is open_device(device.index or 0) is device
    assert device in list_devices()


def test_the_limits_are_at_least_those_that_are_guaranteed(device: Device) -> None:
    limits, least = device.limits, Limits(2048, 256, 4, 16, 16384)
    assert all(getattr(limits, name) >= value for name, value in vars(least).items())


@pytest.mark.parametrize("select", ["nvidia", "-1", "", "1.5"])
def test_a_selector_that_is_none_is_refused(select: str) -> None:
    with pytest.raises(GlgptError, match="is not auto, software, gpu or an EGL device index"):
        open_device(select)


def test_an_index_beyond_the_devices_is_refused(device: Device) -> None:
    with pytest.raises(GlgptError, match=r"EGL device 99 does not exist; use --device auto, or one of these: 0: .+"):
        open_device(99)
    assert device.ctx.error == "GL_NO_ERROR"


def test_what_was_tried_is_said(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the error does not name what to install, or does not state that only software GL was found."""
    monkeypatch.setattr(gl_device, "_devices", lambda: iter(["EGL device 0 does not open: no libEGL"]))
    for select, shown in (("auto", "OpenGL"), ("software", "software"), ("gpu", "gpu")):
        with pytest.raises(GlgptError, match=f"no {shown} device: EGL device 0 does not open: no libEGL; "):
            open_device(select)
    monkeypatch.setattr(gl_device, "_devices", lambda: iter([device]))
    assert open_device("auto") is device
    with pytest.raises(GlgptError, match=r"no gpu device: EGL device .* is .*install the GPU's OpenGL driver"):
        open_device("gpu")
    monkeypatch.setattr(gl_device, "_devices", lambda: iter([]))
    with pytest.raises(GlgptError, match="no OpenGL device: EGL lists no devices; install Mesa"):
        open_device("auto")


@pytest.mark.parametrize("header", HEADERS)
def test_a_shader_error_shows_its_line(device: Device, header: str) -> None:
    """Fails if the error gives the driver's line number, which counts generated lines, instead of the line's text."""
    for fetch in ("texelFetch", "textureLod"):
        with pytest.raises(GlgptError) as error:
            device.compile("broken", TEXT % "nothing", Options(header, fetch, "uint"))
        said = str(error.value)
        assert said.startswith("shader broken does not compile: ") and "nothing" in said
        assert said.endswith(": void main() { y = vec4(nothing); }")


@pytest.mark.parametrize("header", HEADERS)
def test_shaders_compile_with_either_header(device: Device, header: str) -> None:
    program = device.compile("fine", TEXT % "1.0", Options(header))
    assert "program fine" in device.live.values()
    device.release(program)


@pytest.mark.parametrize(("kind", "dtype"), [("float", "f4"), ("uint", "u4")])
def test_textures_are_fetched_as_they_are(device: Device, kind: str, dtype: str) -> None:
    """Fails if a texture is filtered, wraps around, or is not counted."""
    before = device.texture_bytes
    texture = device.texture("t", 5, 3, 2, kind)
    assert device.texture_bytes - before == 5 * 3 * 2 * 16 and texture.dtype == dtype
    assert texture.filter == (moderngl.NEAREST, moderngl.NEAREST)
    assert not texture.repeat_x and not texture.repeat_y
    device.release(texture)
    device.release(texture)  # releasing twice is harmless
    assert device.texture_bytes == before


def framebuffers(device: Device) -> list[int]:
    """Returns the names of the framebuffers that exist."""
    exists = device.gl("glIsFramebuffer", ctypes.c_ubyte, ctypes.c_uint)
    return [name for name in range(1, 20_000) if exists(name)]


def test_a_refused_framebuffer_leaves_nothing_behind(device: Device) -> None:
    texture = device.texture("t", 4, 4, 1, "float")
    before = framebuffers(device)
    with pytest.raises(GlgptError):
        device.framebuffer([(texture, 7)])
    assert device.ctx.error == "GL_NO_ERROR" and framebuffers(device) == before
    device.release(texture)


def test_a_framebuffer_is_deleted_when_released(device: Device) -> None:
    texture = device.texture("t", 4, 4, 2, "float")
    before = framebuffers(device)
    framebuffer = device.framebuffer([(texture, 1), (texture, 0)])
    assert len(framebuffers(device)) == len(before) + 1
    device.release(framebuffer, texture)
    assert framebuffers(device) == before


def test_a_forked_process_is_refused_a_device(device: Device) -> None:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)  # without the check, the child waits for driver threads that exist in its parent only
            for use in (device.use, lambda: open_device("software")):
                with pytest.raises(GlgptError) as caught:
                    use()
                os.write(writes, str(caught.value).encode())
        finally:
            os._exit(0)
    os.close(writes)
    assert os.waitpid(child, 0)[1] == 0
    with os.fdopen(reads) as file:
        assert file.read().count("OpenGL does not survive a fork") == 2


def test_a_device_is_used_in_its_own_thread(device: Device) -> None:
    def elsewhere() -> Device:
        with pytest.raises(GlgptError, match="in the thread that loaded it"):
            device.use()
        other = open_device(device.index or 0)
        texture = other.texture("x", 1, 1, 1, "float")
        texture.write(np.float32([1, 2, 3, 4]).tobytes())
        assert np.frombuffer(texture.read(), np.float32).tolist() == [1, 2, 3, 4]
        other.release(texture)
        return other

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(elsewhere).result() is not device
    device.use()


def test_an_interrupt_waits_for_the_compiler(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def program(**_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        done.append("compiled")

    monkeypatch.setattr(device, "ctx", SimpleNamespace(program=program))
    with pytest.raises(KeyboardInterrupt):
        device.compile("x", "", Options(device.header))
    assert done == ["compiled"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_texture_too_large_is_refused(device: Device) -> None:
    """Fails if a texture that the driver refuses is returned as if it existed."""
    with pytest.raises(GlgptError, match="the driver refused texture big"):
        device.texture("big", 10 * device.limits.max_texture_size, 1, 1, "float")
    assert device.ctx.error == "GL_NO_ERROR"


def test_devices_are_counted_not_tried_until_one_fails(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if nonexistent devices are listed because the text of a driver's error is an unexpected one."""
    count = len(list_devices())
    assert count == gl_device._egl_devices() >= 1

    def fail(_: int) -> Device:
        raise RuntimeError("some other words")

    monkeypatch.setattr(gl_device, "_create", fail)
    monkeypatch.setattr(gl_device, "_here", gl_device._Here())
    assert list_devices() == [f"EGL device {i} does not open: some other words" for i in range(count)]
    with pytest.raises(DeviceError, match="no OpenGL device"):
        open_device()


def test_a_driver_that_cannot_convert_halves_is_known(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if shaders require the packing extension on macOS, whose OpenGL 4.1 lacks this extension."""
    monkeypatch.setattr(gl_device, "PACKING", "#extension GL_no_such_extension : require\n")
    assert device.packing and device._compiles("330") and not device._compiles("330", gl_device.PACKING)
    text = device.preamble(Options("330", packing=False))
    assert text == "#version 330\n#define NO_PACKING\n" and "extension" in device.preamble(Options("330"))
