"""The ops that models are recorded with: each checks shapes, emits shader passes and records its gradient (vjp).

Ops are functions such as `matmul`, `attend`, `norm`, `cross_entropy` and `adamw`. The shader of an op is the file of
the same name in `glsl/`. Depends on `glgpt.program` (tensors and the recorder), not on models or OpenGL.
"""

from glgpt.ops.adamw import LossScale, adamw, gradient_norm, normal
from glgpt.ops.argmax import argmax
from glgpt.ops.attention import (
    KEYS,
    PATTERNS,
    UNLIMITED,
    ScoreLimits,
    adopt,
    attend,
    attend_row,
    score_tiles,
    scores,
    scores_rows,
    set_pattern,
    softmax,
    split_qkv,
)
from glgpt.ops.embed import embed, index_layouts, sorted_index
from glgpt.ops.few_rows import MOST_ROWS, few_rows
from glgpt.ops.loss import cross_entropy, cross_entropy_rows, prediction
from glgpt.ops.matmul import (
    CONTIGUOUS,
    GPU_SPLITS,
    SOFTWARE_SPLITS,
    TRAINING_SPLITS,
    Splits,
    combine,
    matmul,
    matvec,
    panels,
)
from glgpt.ops.norm import folded_norm, norm, norm_fold, rms_norm, row_sum
from glgpt.ops.partial_sums import AttendedRow, Normed, NormedRow, PartialSums, Row, Rows
from glgpt.ops.pointwise import (
    ACTIVATIONS,
    act,
    add,
    copy,
    dropout,
    edit,
    edit_one,
    multiply,
    place_rows,
    take_row,
    transpose,
)
from glgpt.ops.rotary import HeadColumns, HeadNorm, Rotation, head_scales, rotary
from glgpt.ops.sample import ALTERNATIVES, MAX_STEP, MAX_TEMPERATURE, TOKEN, sample

__all__ = [
    "ACTIVATIONS",
    "ALTERNATIVES",
    "CONTIGUOUS",
    "GPU_SPLITS",
    "KEYS",
    "MAX_STEP",
    "MAX_TEMPERATURE",
    "MOST_ROWS",
    "PATTERNS",
    "SOFTWARE_SPLITS",
    "TOKEN",
    "TRAINING_SPLITS",
    "UNLIMITED",
    "AttendedRow",
    "HeadColumns",
    "HeadNorm",
    "LossScale",
    "Normed",
    "NormedRow",
    "PartialSums",
    "Rotation",
    "Row",
    "Rows",
    "ScoreLimits",
    "Splits",
    "act",
    "adamw",
    "add",
    "adopt",
    "argmax",
    "attend",
    "attend_row",
    "combine",
    "copy",
    "cross_entropy",
    "cross_entropy_rows",
    "dropout",
    "edit",
    "edit_one",
    "embed",
    "few_rows",
    "folded_norm",
    "gradient_norm",
    "head_scales",
    "index_layouts",
    "matmul",
    "matvec",
    "multiply",
    "norm",
    "norm_fold",
    "normal",
    "panels",
    "place_rows",
    "prediction",
    "rms_norm",
    "rotary",
    "row_sum",
    "sample",
    "score_tiles",
    "scores",
    "scores_rows",
    "set_pattern",
    "softmax",
    "sorted_index",
    "split_qkv",
    "take_row",
    "transpose",
]
