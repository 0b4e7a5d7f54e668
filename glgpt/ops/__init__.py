"""One block an op: its shape rule and the passes it emits. Its shaders share its stem in `glsl/`."""

from glgpt.ops.argmax import argmax
from glgpt.ops.attention import attend, attend_row, scores, softmax, split_qkv
from glgpt.ops.embed import embed
from glgpt.ops.matmul import combine, matmul, matvec
from glgpt.ops.norm import norm, row_norm
from glgpt.ops.pointwise import ACTIVATIONS, act, add

__all__ = [
    "ACTIVATIONS",
    "act",
    "add",
    "argmax",
    "attend",
    "attend_row",
    "combine",
    "embed",
    "matmul",
    "matvec",
    "norm",
    "row_norm",
    "scores",
    "softmax",
    "split_qkv",
]
