"""Runs two matrix products as other WebGL libraries compute them; the engine's products are compared with these."""

from __future__ import annotations

from typing import Any

import moderngl
import numpy as np

from glgpt.gl.device import HEADERS, VERTEX, Device
from glgpt.program.formats import Floats
from glgpt.system.files import data_path

FETCH2D = {
    "texelFetch": "#define FETCH2D(s, step, x, y) texelFetch(s, ivec2(x, y), 0)",
    "textureLod": "#define FETCH2D(s, step, x, y) textureLod(s, (vec2(x, y) + 0.5) * step, 0.0)",
}


class Baseline:
    """Computes the product of x `[M, K]` and w `[K, N]` with a shader (`kernel`) that is written as in another library.

    A texel holds one value in the kernel `one_output`, and a block of 2 x 2 values in the kernel `block2x2`.
    """

    def __init__(self, device: Device, kernel: str, fetch: str, x: Floats, w: Floats) -> None:
        self.device, self.kernel, self.shape = device, kernel, (x.shape[0], w.shape[1])
        device.use()
        one = kernel == "one_output"
        steps = {
            "X_STEP": (x.shape[1], x.shape[0]) if one else (x.shape[1] // 2, x.shape[0] // 2),
            "W_STEP": (w.shape[1], w.shape[0]) if one else (w.shape[1] // 2, w.shape[0] // 2),
        }
        text = "\n".join(
            [
                HEADERS["300 es"] + "precision highp float;\nprecision highp int;",
                FETCH2D[fetch],
                f"#define K {x.shape[1]}",
                *(f"#define {k} vec2({1 / a:.10e}, {1 / b:.10e})" for k, (a, b) in steps.items()),
                (data_path("glsl") / "bench" / f"{kernel}.frag").read_text(encoding="utf-8"),
            ]
        )
        self._own: list[Any] = []
        program = self._keep(device.ctx.program(vertex_shader=HEADERS["300 es"] + VERTEX, fragment_shader=text))
        program["u_x"].value, program["u_w"].value = 0, 1
        self._x, self._w = self._texture(x if one else blocks(x)), self._texture(w if one else blocks(w))
        self._y = self._texture(np.zeros(self.shape, np.float32) if one else blocks(np.zeros(self.shape, np.float32)))
        self._framebuffer = self._keep(device.ctx.framebuffer([self._y]))
        self._draw = self._keep(device.ctx.vertex_array(program, []))

    def _keep(self, item: Any) -> Any:
        self._own.append(item)
        return item

    def _texture(self, values: Floats) -> moderngl.Texture:
        lanes = 1 if values.ndim == 2 else 4
        size = (values.shape[1], values.shape[0])
        data = np.ascontiguousarray(values)
        texture: moderngl.Texture = self._keep(self.device.ctx.texture(size, lanes, data, dtype="f4"))
        texture.filter = (moderngl.NEAREST, moderngl.NEAREST)
        texture.repeat_x = texture.repeat_y = False
        return texture

    def play(self) -> None:
        """Runs the product once."""
        self._x.use(0)
        self._w.use(1)
        self._framebuffer.use()
        self._draw.render(moderngl.TRIANGLES, 3)

    def result(self) -> Floats:
        """Returns the product `[M, N]`."""
        m, n = self.shape
        data: Floats = np.frombuffer(self._y.read(), np.float32)
        if self.kernel == "block2x2":
            data = data.reshape(m // 2, n // 2, 2, 2).transpose(0, 2, 1, 3)
        result: Floats = data.reshape(m, n)
        return result

    def close(self) -> None:
        """Releases the GL objects."""
        for item in reversed(self._own):
            item.release()


def blocks(matrix: Floats) -> Floats:
    """Returns a matrix `[R, C]` as texels `[R/2, C/2, 4]`; each texel holds a block of 2 x 2 values."""
    r, c = matrix.shape
    return np.ascontiguousarray(matrix.reshape(r // 2, 2, c // 2, 2).transpose(0, 2, 1, 3).reshape(r // 2, c // 2, 4))
