"""Ops that work value by value: activations and sums."""

from __future__ import annotations

from glgpt.record import Recorder, Tensor
from glgpt.tensor import Layout

ACTIVATIONS = {None: 0, "gelu_new": 1, "gelu": 2, "relu": 3}

# ln(erfc(z) exp(z z) / t), t = 1 / (1 + z/2), as a polynomial in s = 2t - 1: Chebyshev interpolation of degree 9 over
# 0 <= z <= 9.7, made for this file; off by 5e-8 before rounding to float32.
ERFC = (
    -0.671794056892395,
    0.672642707824707,
    0.047341544181108475,
    -0.046882934868335724,
    -0.009852822870016098,
    0.008729903027415276,
    0.001695533748716116,
    -0.002050288487225771,
    -0.00011442708637332544,
    0.00028487504459917545,
)


def activation_defines(name: str | None) -> dict[str, int | float | str]:
    """What `activation.glsl` needs to know of an activation (None: the identity)."""
    horner = f"{ERFC[-1]:.9g}"
    for c in reversed(ERFC[:-1]):
        horner = f"({horner} * (s) + {c:.9g})"
    code = ACTIVATIONS[name]
    return {"ACT": code, "ERFC(s)": horner} if name == "gelu" else {"ACT": code}


def act(rec: Recorder, x: Tensor, kind: str, out: Layout, name: str) -> Tensor:
    """y = gelu_new, gelu or relu of x."""
    y = rec.scratch(name, out)
    rec.emit("act", {"x": x}, {"y": y}, activation_defines(kind))
    return y


def add(rec: Recorder, a: Tensor, b: Tensor, out: Layout, name: str) -> Tensor:
    """y = a + b."""
    y = rec.scratch(name, out)
    rec.emit("add", {"a": a, "b": b}, {"y": y})
    return y
