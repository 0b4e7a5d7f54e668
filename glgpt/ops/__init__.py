"""One block an op: its shape rule and the passes it emits. A shader in `glsl/` is named after its op."""

from glgpt.ops.argmax import argmax
from glgpt.ops.attention import attend, attend_row, scores, softmax, split_qkv
from glgpt.ops.embed import embed
from glgpt.ops.matmul import combine, matmul, matvec
from glgpt.ops.norm import NormedRow, PartialSums, folded_norm, norm, norm_fold, row_sum
from glgpt.ops.pointwise import ACTIVATIONS, act, add

__all__ = [
    "ACTIVATIONS",
    "NormedRow",
    "PartialSums",
    "act",
    "add",
    "argmax",
    "attend",
    "attend_row",
    "combine",
    "embed",
    "folded_norm",
    "matmul",
    "matvec",
    "norm",
    "norm_fold",
    "row_sum",
    "scores",
    "softmax",
    "split_qkv",
]
