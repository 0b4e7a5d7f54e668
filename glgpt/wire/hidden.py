"""Packs hidden states, of shape `[n, n_embd]`, into bytes: as f32 (exact), f16, or int8 with a scale per row."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.wire import int8

Format = Literal["f32", "f16", "int8"]
FORMATS: tuple[Format, ...] = get_args(Format)
Floats = NDArray[np.float32]
_MAX_FLOAT16 = 65504.0


def nbytes(rows: int, width: int, kind: str) -> int:
    """Returns how many bytes `rows` hidden states, of `width` numbers each, take in format `kind`."""
    return int8.nbytes(rows * width, width) if kind == "int8" else rows * width * {"f32": 4, "f16": 2}[kind]


def pack(states: Floats, kind: str) -> bytes:
    """Returns hidden states, of shape `[n, width]`, as little-endian bytes; for int8, all scales precede all rows.

    Raises GlgptError for states that are not finite, and for states beyond the range of f16 if `kind` is f16.
    """
    peak = np.abs(states).max(axis=1, initial=0.0)
    if not np.isfinite(peak).all():
        raise GlgptError("hidden states are not finite; the model's weights overflow this dtype (try --dtype f32)")
    if kind == "f32":
        return bytes(np.ascontiguousarray(states, "<f4").tobytes())
    if kind == "f16":
        if peak.max(initial=0.0) > _MAX_FLOAT16:
            raise GlgptError(
                f"hidden states reach {peak.max():.3g}, above f16's maximum {_MAX_FLOAT16:.0f}; send them as f32"
            )
        return bytes(states.astype("<f2").tobytes())
    return int8.encode(states, states.shape[1])


def unpack(data: bytes | memoryview, rows: int, width: int, kind: str) -> Floats:
    """Reads what `pack` wrote, as `[rows, width]`. Raises GlgptError for a wrong length, NaN or infinity."""
    if len(data) != nbytes(rows, width, kind):
        wanted = f"{rows} x {width} as {kind} take {nbytes(rows, width, kind)}"
        raise GlgptError(f"the hidden states have {len(data)} bytes; {wanted}")
    if kind == "int8":
        states = int8.decode(data, rows * width, width).reshape(rows, width)
    else:
        states = np.frombuffer(data, "<f4" if kind == "f32" else "<f2").astype(np.float32).reshape(rows, width)
    if not np.isfinite(states).all():
        raise GlgptError("the hidden states contain NaN or infinity")
    return states
