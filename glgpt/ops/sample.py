"""Drawing a token from a row of logits: temperature, top-k, top-p, min-p, and the likeliest tokens.

The kept tokens are those above a threshold, a logit and an id. It is found among candidates, the best tokens of each
block of the row, and for top-p below the tokens that a search over the logits' range has weighed. Where the candidates
do not reach the threshold, nothing is decided, and the caller reads the row.
"""

from __future__ import annotations

from collections.abc import Sequence

from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.tensor import Tensor

MAX_TEMPERATURE = 1e30  # times the range of a nucleus it fits a float32
MAX_STEP = 2**31 - 1  # of a draw: a signed scalar
ALTERNATIVES = 8  # likeliest tokens that come with a drawn one
TOKEN = Layout(1, 4 * (1 + ALTERNATIVES + 1))  # the drawn one, the likeliest, and sums of weights (`draw.frag`)
LEVELS = 4  # of the search for the nucleus: each divides its range by 16
SITE = "0x5eedu"  # tells these random numbers from those of dropout and of fresh weights
BLOCKS = (8, 64)  # rows and columns of pixels at most, each of which takes a block of the row
MERGED_BLOCKS = (8, 8)  # those that candidates are merged into
PARTS = 8  # of the candidates, looked through side by side
CANDIDATES = 7  # of a merged block: with the block's sums they fill four targets


def sample(rec: Recorder, x: Tensor, best: Tensor, out: Tensor, nucleus: bool) -> None:
    """Draws from logits x `[1, N]`, whose greatest is in the state `best` (`argmax`), into the state `out` (`TOKEN`).

    They may be the same. With several rows, `out` gets as many tokens, of the steps from `draw_step` on.

    The scalars `inverse_temperature`, `top_k` (0: all), `top_p` (1: all), `margin` (how far below the greatest logit
    min-p ends), `draw_seed` and `draw_step` say how. Without top-k, top-p needs `nucleus`, and the scalar
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


def _candidates(rec: Recorder, x: Tensor, best: Tensor, levels: Sequence[Tensor]) -> Tensor:
    """The likeliest tokens of merged blocks; with `levels`, of those below the bracket that they found."""
    rows, cols = _blocks(x)
    first = rec.scratch("sample.first", Layout(rows, 12 * cols, (1, 3)))
    rec.emit("candidates", {"x": x, "best": best} | _levels(levels), {"y": first}, _walk(x))
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
    """What the tokens above each edge of the next level weigh, in rows to be added up."""
    rows, cols = _blocks(x)
    parts = rec.scratch("sample.parts", Layout(rows, 16 * cols, (1, 4)))
    rec.emit("nucleus_weights", {"x": x, "best": best} | _levels(levels), {"y": parts}, _walk(x))
    y = rec.scratch("sample.weights", Layout(rows, 16))
    rec.emit("sum_row", {"x": parts}, {"y": y}, label="sample.weights")
    return y


def _levels(levels: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"m{i}": level for i, level in enumerate(levels, 1)}


def _blocks(x: Tensor) -> tuple[int, int]:
    """Rows and columns of blocks: as many as there are texels, at most `BLOCKS`."""
    return BLOCKS[0], max(1, min(BLOCKS[1], -(-x.cols // (4 * BLOCKS[0]))))


def _walk(x: Tensor) -> dict[str, int | float | str]:
    rows, cols = _blocks(x)
    return {"C4": -(-x.cols // 4), "BLOCKS": rows * cols}
