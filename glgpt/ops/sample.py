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

ALTERNATIVES = 8  # likeliest tokens that come with a drawn one
TOKEN = Layout(1, 4 * (1 + ALTERNATIVES + 1))  # the drawn one, the likeliest, and sums of weights (`draw.frag`)
LEVELS = 3  # of the search for the nucleus: each divides its range by 16
SITE = "0x5eedu"  # tells these random numbers from those of dropout and of fresh weights
BEST_OF_BLOCK = 7  # candidates of a block: with the block's sums they fill four targets
CANDIDATE_BLOCKS = (8, 8)  # rows and columns of pixels, each of which takes a block
WEIGHT_BLOCKS = (8, 32)
SUM_BLOCKS = (8, 16)
AT_ONCE = 4  # texels that a block fetches before it compares them


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
    threshold = rec.scratch("sample.threshold", Layout(1, 4))
    inputs = {"ranked": low or ranked, "best": best} | _levels(levels)
    rec.emit("threshold", inputs, {"y": threshold}, {"COLS": x.cols})
    blocks = _blocks(SUM_BLOCKS, x)
    sums = rec.scratch("sample.sums", Layout(blocks[0], 4 * blocks[1]))
    rec.emit("kept_sums", {"x": x, "threshold": threshold}, {"y": sums}, _walk(x, blocks))
    inputs = {"x": x, "threshold": threshold, "sums": sums, "ranked": ranked, "candidates": top}
    rec.emit("draw", inputs, {"y": out}, _walk(x, blocks) | {"SITE": SITE}, label="draw")


def _candidates(rec: Recorder, x: Tensor, best: Tensor, levels: Sequence[Tensor]) -> Tensor:
    blocks, targets = _blocks(CANDIDATE_BLOCKS, x), (BEST_OF_BLOCK + 1) // 2
    y = rec.scratch("sample.candidates", Layout(blocks[0], 4 * blocks[1] * targets, (1, targets)))
    defines = _walk(x, blocks) | {"N_BEST": BEST_OF_BLOCK, "AT_ONCE": AT_ONCE}
    rec.emit("candidates", {"x": x, "best": best} | _levels(levels), {"y": y}, defines)
    return y


def _ranked(rec: Recorder, candidates: Tensor, best: Tensor) -> Tensor:
    blocks = candidates.layout.height * candidates.layout.width
    y = rec.scratch("sample.ranked", Layout(BEST_OF_BLOCK, 4 * blocks))
    rec.emit("rank", {"x": candidates, "best": best}, {"y": y})
    return y


def _weights(rec: Recorder, x: Tensor, best: Tensor, levels: Sequence[Tensor]) -> Tensor:
    blocks = _blocks(WEIGHT_BLOCKS, x)
    parts = rec.scratch("sample.parts", Layout(blocks[0], 16 * blocks[1], (1, 4)))
    rec.emit("nucleus_weights", {"x": x, "best": best} | _levels(levels), {"y": parts}, _walk(x, blocks))
    y = rec.scratch("sample.weights", Layout(1, 16))
    rec.emit("sum_texels", {"x": parts}, {"y": y}, label="sample.weights")
    return y


def _levels(levels: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"m{i}": level for i, level in enumerate(levels, 1)}


def _blocks(most: tuple[int, int], x: Tensor) -> tuple[int, int]:
    """Rows and columns of blocks: as many as there are texels, at most `most`."""
    rows, cols = most
    return rows, max(1, min(cols, -(-x.cols // (4 * rows))))


def _walk(x: Tensor, blocks: tuple[int, int]) -> dict[str, int | float | str]:
    return {"C4": -(-x.cols // 4), "BLOCKS": blocks[0] * blocks[1]}
