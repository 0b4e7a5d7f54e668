"""Defines the strategies by which Hypothesis draws the shapes of cases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st


def shapes(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[SimpleNamespace]:
    return st.builds(SimpleNamespace, **fields)


ROWS, COLS = st.integers(1, 29), st.integers(1, 100)
ACTS = st.sampled_from(["gelu_new", None, "gelu", "relu"])
MATRIX = {"rows": ROWS, "cols": COLS}
ATTENTION = {"rows": st.integers(1, 13), "n_head": st.integers(1, 3), "d4": st.integers(1, 3)} | {
    "pos": st.integers(0, 9),
    "spare": st.integers(0, 9),  # positions of the context that are still empty
}
# One row attends to `pos` + 1 keys, in groups of sixteen and a remainder. A range has at least `least` keys.
RANGES = {"pos": st.sampled_from([50, 40, 22, 15, 3]), "least": st.sampled_from([16, 128]), "cols": COLS}
VOCAB = st.sampled_from([250, 131, 50, 3, 1])  # 250, always drawn, is wider than a folded texture and two panels
FLAG = st.sampled_from([True, False])  # the first one is always drawn
CONTIGUOUS = st.sampled_from((0, 2, 4))
PRODUCT = {"inner": st.integers(1, 100), "tiles": st.integers(1, 2), "split_k": st.integers(1, 5)} | {
    "contiguous": CONTIGUOUS,
    "width": st.integers(2, 64),  # width of the row whose moments a folded norm uses
}
FEW = {"texts": st.integers(1, 8), "inner": COLS, "contiguous": st.sampled_from((0, 2, 4)), "panels": FLAG}
FEW_HEADS = {"n_head": st.integers(1, 3), "d4": st.integers(1, 3)}
ROW = {"inner": COLS, "contiguous": st.sampled_from((0, 2, 4))}
GROUP = {"group": st.sampled_from([2, 1, 3])}
ROTATIONS = {
    "n_head": st.integers(1, 3),
    "d_head": st.sampled_from([6, 8, 2, 16]),
    "rotate": st.sampled_from([True, False]),
}
SPARE = {"spare": st.integers(0, 9)}
PART = {"row": st.integers(0, 28)}
BATCH = {"rows": st.sampled_from([8, 1, 3, 12, 7]), "batch": st.sampled_from([2, 1, 3])}
HEADS = BATCH | {"n_head": st.integers(1, 3), "d4": st.integers(1, 3)}
RATES = {"rate": st.sampled_from([0.1, 0.5, 0.9]), "seed": st.sampled_from([2**31 - 1, 0, 3])}
EPS = 0.1  # of norms; large, so that the gradients of rows with few values are not almost zero
DY = {"so_far": FLAG, "plain_dy": FLAG}
WIDE = {"rows": st.sampled_from([29, 1, 7, 22]), "cols": st.sampled_from([37, 1, 6, 100])}
