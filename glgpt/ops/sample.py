"""Samples a token from a row of logits with temperature, top-k, top-p and min-p, and lists the likeliest tokens.

The kept tokens are those above a threshold, which is a logit and an id. The threshold is searched among candidates, the
best tokens of each block of the row. For top-p without top-k, a search over the range of logits first narrows down
where the nucleus ends, and the candidates are the best tokens below that. If the candidates do not reach the threshold,
the result says so, and the caller has to sample on the CPU from the whole row.
"""

from __future__ import annotations

from collections.abc import Sequence

from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor

MAX_TEMPERATURE = 1e30  # multiplied by the range of a nucleus, it still fits in a float32
MAX_STEP = 2**31 - 1  # the greatest value of the scalar `draw_step`, a signed integer
ALTERNATIVES = 8  # likeliest tokens that are returned with the drawn one
TOKEN = Layout(1, 4 * (1 + ALTERNATIVES + 1))  # texels: the drawn token, the likeliest, sums of weights (`draw.frag`)
LEVELS = 4  # of the search for the nucleus: each divides its range by 16
SITE = "0x5eedu"  # makes these random numbers differ from those of dropout and of fresh weights
BLOCKS = (8, 64)  # maximum rows and columns of pixels, each of which takes a block of the row
MERGED_BLOCKS = (8, 8)  # rows and columns of the blocks that candidates are merged into
PARTS = 8  # the candidates are searched in this many parts in parallel
ARGMAX_ROWS = 8  # argmax reduces each row of x to this many rows of blocks first
CANDIDATES = 7  # of a merged block: with the block's sums they fill four targets
MASK_BITS = 16  # tokens in each number of a mask: integers up to 2^24 are exact in float32


def argmax(rec: Recorder, x: Tensor, out: Tensor) -> None:
    """Writes the texel (column, value, 1 if x is not finite, 0) for x `[1, N]` to the state `out`, followed by zeros.

    If several values are equal, the first one wins. If x has several rows, `out` has a row for each.
    """
    c4 = -(-x.cols // 4)
    best = rec.scratch("argmax.blocks", Layout(ARGMAX_ROWS * x.rows, 4 * max(1, min(32, c4 // 128))))
    blocks = ARGMAX_ROWS * best.layout.width
    rec.emit("argmax", {"x": x}, {"y": best}, {"C4": c4, "BLOCKS": blocks, "HIGH": ARGMAX_ROWS})
    rec.emit("argmax_final", {"x": best}, {"y": out}, {"HIGH": ARGMAX_ROWS}, label="argmax")


def sample(rec: Recorder, x: Tensor, best: Tensor, out: Tensor, nucleus: bool) -> None:
    """Samples a token from the logits x `[1, N]` and writes it to the state `out` (layout `TOKEN`).

    The state `best` holds the greatest logit (`argmax`); it may be the same state as `out`. If `out` has several rows,
    each holds another token from the same logits, of the steps from `draw_step` on.

    The scalars are `inverse_temperature`, `top_k` (0: all), `top_p` (1: all), `margin` (min-p keeps logits at most this
    far below the greatest), `draw_seed` and `draw_step`. Top-p without top-k needs `nucleus` and the scalar
    `nucleus_width`: a power of two, the range of logits below the greatest in which to search.
    """
    top = _candidates(rec, x, best, ())
    ranked, levels, low = _ranked(rec, top, best), list[Tensor](), None
    if nucleus:
        for _ in range(LEVELS):
            levels.append(_weights(rec, x, best, levels))
        low = _ranked(rec, _candidates(rec, x, best, levels), best)
    blocks, threshold = _blocks(x), rec.scratch("sample.threshold", Layout(1, 4 * (PARTS + 1)))
    inputs = {"ranked": low or ranked, "best": best} | _levels(levels)
    rec.emit("threshold", inputs, {"y": threshold}, {"COLS": x.cols})
    winners = rec.scratch("sample.winners", Layout(blocks[0] * out.rows, 4 * blocks[1]))
    rows: dict[str, int | float | str] = {"BLOCK_ROWS": blocks[0], "NUCLEUS": str(nucleus).lower()}
    rec.emit("race", {"x": x, "threshold": threshold}, {"y": winners}, _walk(x) | rows | {"SITE": SITE})
    inputs = {"threshold": threshold, "winners": winners, "ranked": ranked, "candidates": top}
    rec.emit("draw", inputs, {"y": out}, rows, label="draw")


def mask_logits(rec: Recorder, x: Tensor, allowed: Tensor) -> Tensor:
    """Records the logits x `[1, N]` with those of forbidden tokens lowered below all others; they are never drawn.

    Each number of `allowed` `[1, N / MASK_BITS]` has a bit for each of `MASK_BITS` tokens, the lowest for the first. At
    least one token must be allowed, and the scalar `top_k` must not exceed their number. A logit that is not finite
    stays, so that it is found.
    """
    y = rec.scratch("sample.masked", x.layout)
    rec.emit("mask_logits", {"x": x, "allowed": allowed}, {"y": y})
    return y


def _candidates(rec: Recorder, x: Tensor, best: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Records the likeliest tokens of merged blocks; with `levels`, only tokens below the bracket that they found."""
    rows, cols = _blocks(x)
    first = rec.scratch("sample.first", Layout(rows, 12 * cols, (1, 3)))
    constants: dict[str, int | float | str] = {"C4": -(-x.cols // 4), "STRIDE": rows * cols // 4}
    rec.emit("candidates", {"x": x, "best": best} | _levels(levels), {"y": first}, constants)
    cols, targets = min(cols, MERGED_BLOCKS[1]), (CANDIDATES + 1) // 2
    y = rec.scratch("sample.candidates", Layout(MERGED_BLOCKS[0], 4 * cols * targets, (1, targets)))
    rec.emit("merge_candidates", {"x": first}, {"y": y}, {"BLOCKS": MERGED_BLOCKS[0] * cols})
    return y


def _ranked(rec: Recorder, candidates: Tensor, best: Tensor) -> Tensor:
    blocks = candidates.layout.height * candidates.layout.width
    y = rec.scratch("sample.ranked", Layout(CANDIDATES, 4 * blocks))
    rec.emit("rank", {"x": candidates, "best": best}, {"y": y})
    return y


def _weights(rec: Recorder, x: Tensor, best: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Records the weight of the tokens above each edge of the next level, in rows whose sum is the weight."""
    rows, cols = _blocks(x)
    parts = rec.scratch("sample.parts", Layout(rows, 16 * cols, (1, 4)))
    rec.emit("nucleus_weights", {"x": x, "best": best} | _levels(levels), {"y": parts}, _walk(x))
    y = rec.scratch("sample.weights", Layout(rows, 16))
    rec.emit("sum_row", {"x": parts}, {"y": y}, label="sample.weights")
    return y


def _levels(levels: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"m{i}": level for i, level in enumerate(levels, 1)}


def _blocks(x: Tensor) -> tuple[int, int]:
    """Returns the rows and columns of blocks: one block for each texel, at most `BLOCKS`."""
    return BLOCKS[0], max(1, min(BLOCKS[1], -(-x.cols // (4 * BLOCKS[0]))))


def _walk(x: Tensor) -> dict[str, int | float | str]:
    rows, cols = _blocks(x)
    return {"C4": -(-x.cols // 4), "BLOCKS": rows * cols}
