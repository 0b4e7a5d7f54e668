"""Defines the cases of all ops, with one module per subject.

A case has shapes to draw, a function that records the op and computes the expected result, and a tolerance. `CASES` are
for inference, `TRAINING` for forward ops that only training uses, and `VJPS` for gradients. `SHAPE` has a value for
each parameter that some case reads, so any case can be recorded with it.
"""

from __future__ import annotations

from typing import Any

from cases import adamw, attention, embed, families, loss, matmul, norm, pointwise, rotary, sample
from cases.case import Case, VjpCase

CASES: dict[str, Case] = (
    embed.CASES
    | norm.CASES
    | matmul.CASES
    | rotary.CASES
    | attention.CASES
    | pointwise.CASES
    | sample.CASES
    | families.CASES
)
TRAINING: dict[str, Case] = embed.TRAINING | attention.TRAINING | pointwise.TRAINING | loss.TRAINING | adamw.TRAINING
EVERY = CASES | TRAINING
VJPS: dict[str, VjpCase] = (
    embed.VJPS
    | norm.VJPS
    | matmul.VJPS
    | rotary.VJPS
    | attention.VJPS
    | pointwise.VJPS
    | loss.VJPS
    | {f"families {name}": case for name, case in families.VJPS.items()}
)
SHAPE: dict[str, Any] = {
    **{"rows": 11, "cols": 21, "inner": 18, "vocab": 33, "pos": 4, "n_head": 2, "d4": 2, "spare": 3, "row": 5},
    **{"act": "gelu", "bias": True, "residual": True, "shift": True, "plain": False, "normed": False, "named": True},
    **{"tiles": 2, "split_k": 3, "contiguous": 0, "width": 20, "least": 16, "panels": True, "counted": (2, 0, 3, 1)},
    **{"batch": 2, "rate": 0.3, "seed": 5, "tensors": 17, "clip": 1.0, "so_far": True, "plain_dy": False},
    **{"per": 2, "at": 7, "group": 2, "d_head": 6, "rotate": True, "texts": 5, "positions": 40},
    **{"together": False, "offset": True, "before": 1, "window": 3, "pairs": True},
}
