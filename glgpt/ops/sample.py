"""Samples a token from a row of logits with temperature, top-k, top-p and min-p, and lists the likeliest tokens.

These settings keep the likeliest tokens down to a threshold: the logit and the id of the last token that is kept. The
threshold is searched among candidates: the row is divided into blocks, and the candidates are the best tokens of each
block. The tokens that top-p keeps are called the nucleus. For top-p without top-k, a search over the range of logits
first finds a bracket: two logits between which the nucleus ends. The candidates are then the best tokens below the
upper logit. If the threshold may be at a token that is not a candidate, the result is marked as undecided, and the
caller has to sample on the CPU from the whole row.
"""

from __future__ import annotations

from collections.abc import Sequence

from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor

MAX_TEMPERATURE = 1e30  # the product of this and the range of a nucleus still fits in a float32
MAX_STEP = 2**31 - 1  # the greatest value of the scalar `draw_step`, a signed integer
ALTERNATIVES = 8  # number of likeliest tokens that are returned with the drawn token
TOKEN = Layout(1, 4 * (1 + ALTERNATIVES + 1))  # texels: drawn token, likeliest tokens, sums of weights (`draw.frag`)
LEVELS = 4  # levels of the search for the nucleus; each divides the range by 16
SITE = "0x5eedu"  # makes the random numbers of sampling differ from those of dropout and of new weights
BLOCKS = (8, 64)  # maximum rows and columns of pixels; each pixel takes a block of the row of logits
MERGED_BLOCKS = (8, 8)  # maximum rows and columns of pixels after blocks are merged
PARTS = 8  # the threshold is searched in this many parts of the candidates in parallel
ARGMAX_ROWS = 8  # argmax first reduces each row of x to blocks in this many rows of pixels
CANDIDATES = 7  # candidates (logit, id) of a merged block; with the block's sum of weights, they fill four targets
MASK_BITS = 16  # tokens in each number of a mask: integers up to 2^24 are exact in float32


def argmax(rec: Recorder, x: Tensor, out: Tensor) -> None:
    """Writes (column, value, flag, 0) of the greatest value of x `[1, N]` to the first texel of the state `out`.

    The flag is 1 if any value of x is not finite, otherwise 0. The other texels of `out` are zero. If several columns
    have the greatest value, the result is the first of them. If x has several rows, `out` has a row for each of them.
    """
    c4 = -(-x.cols // 4)
    best = rec.scratch("argmax.blocks", Layout(ARGMAX_ROWS * x.rows, 4 * max(1, min(32, c4 // 128))))
    blocks = ARGMAX_ROWS * best.layout.width
    rec.emit("argmax", {"x": x}, {"y": best}, {"C4": c4, "BLOCKS": blocks, "HIGH": ARGMAX_ROWS})
    rec.emit("argmax_final", {"x": best}, {"y": out}, {"HIGH": ARGMAX_ROWS}, label="argmax")


def sample(rec: Recorder, x: Tensor, best: Tensor, out: Tensor, nucleus: bool) -> None:
    """Samples a token from the logits x `[1, N]` and writes it to the state `out` (layout `TOKEN`).

    The state `best` holds the greatest logit (`argmax`); it may be the same state as `out`. If `out` has several rows,
    each holds a separate draw from the same logits: row i uses the step `draw_step` + i.

    The op reads the scalars `inverse_temperature`, `top_k` (0: all tokens), `top_p` (1: all tokens), `margin` (for
    min-p: only logits at most this far below the greatest are kept), `draw_seed` and `draw_step`. Top-p without top-k
    needs `nucleus` and the scalar `nucleus_width`, a power of two: the nucleus is searched in a range of this width
    below the greatest logit.
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
    """Records a copy of the logits x `[1, N]` in which forbidden tokens have such low logits that they are never drawn.

    Each number of `allowed` `[1, N / MASK_BITS]` has a bit for each of `MASK_BITS` tokens; the lowest bit is for the
    first token. At least one token must be allowed, and the scalar `top_k` must not exceed the number of allowed
    tokens. A logit that is not finite stays unchanged, so that sampling reports it.
    """
    y = rec.scratch("sample.masked", x.layout)
    rec.emit("mask_logits", {"x": x, "allowed": allowed}, {"y": y})
    return y


def _candidates(rec: Recorder, x: Tensor, best: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """Records the likeliest tokens of each merged block.

    With `levels` of the search for the nucleus, only tokens below the upper edge of the bracket are candidates.
    """
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
    """Records the total weight of the tokens at or above each edge of the next level, and the weight of all tokens.

    A weight is exp((logit - greatest logit) / temperature). 15 edges divide the bracket. Each of the 16 totals is the
    sum of a column of the result.
    """
    rows, cols = _blocks(x)
    parts = rec.scratch("sample.parts", Layout(rows, 16 * cols, (1, 4)))
    rec.emit("nucleus_weights", {"x": x, "best": best} | _levels(levels), {"y": parts}, _walk(x))
    y = rec.scratch("sample.weights", Layout(rows, 16))
    rec.emit("sum_row", {"x": parts}, {"y": y}, label="sample.weights")
    return y


def _levels(levels: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"m{i}": level for i, level in enumerate(levels, 1)}


def _blocks(x: Tensor) -> tuple[int, int]:
    """Returns the number of rows and columns of blocks: at least one block per texel of x, up to `BLOCKS`."""
    return BLOCKS[0], max(1, min(BLOCKS[1], -(-x.cols // (4 * BLOCKS[0]))))


def _walk(x: Tensor) -> dict[str, int | float | str]:
    rows, cols = _blocks(x)
    return {"C4": -(-x.cols // 4), "BLOCKS": rows * cols}
