"""The machine as arrays: which activations each of its cells shows, and pictures of them for the recorded run."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.inference.model import GPT2
from glgpt.models.spec import EMBED, LOGITS, SCORES, ModelConfig, in_block, part_of
from glgpt.page.files import BLOCKS_AT_ONCE
from glgpt.plots.cells import REACH, folded
from glgpt.program.formats import Floats

CELL = (24, 8)  # texels across and down of a cell in a recorded picture
ASPECT = 5.0  # of a cell on the page, about
PICTURES = 6  # of the recorded run


def stages(config: ModelConfig, block: int) -> list[tuple[str, list[str]]]:
    """A block's cells from above, as the page has them: a name for each, and the activations that it shows."""
    names = [name for name in config.activations if name.startswith(in_block(block, ""))]
    kinds = {kind: [n for n in names if config.activations[n].kind == kind] for kind in ("cache", "heads")}
    added = [name for name in names if config.activations[name].added]
    return [
        ("QKV", kinds["cache"]),
        ("scores", [in_block(block, SCORES)]),
        ("mix", kinds["heads"]),
        ("residual", [names[names.index(added[0]) + 1]]),
        ("MLP", [names[names.index(added[-1]) - 1]]),
        ("residual", names[-1:]),
    ]


def rows_of(found: Mapping[str, Floats], names: Sequence[str], t: int) -> Floats:
    """What token `t` has of these activations, `[rows, columns]`: of heads a row each, of scores those up to itself."""

    def of(name: str) -> Floats:
        values = found[name]
        if part_of(name) == SCORES:
            return values[:, t, : t + 1]
        return values[:, t] if values.ndim == 3 else values[t : t + 1]

    return np.concatenate([of(name) for name in names])


def recorded_machine(model: GPT2, ids: Sequence[int], given: int, logits: Floats) -> dict[str, Any]:
    """Pictures of the machine while some of the tokens behind the first `given` came out, spread over all of them.

    `logits` are those of all `ids`. A picture is a byte a texel, 127 for zero, rows from above; a column of cells for
    the embedding, each block and the logits.
    """
    config = model.config
    at = sorted({round(t) for t in np.linspace(given, len(ids) - 1, PICTURES)})
    wide, high = CELL[0], CELL[1] * len(stages(config, 0))
    pictures = np.empty((len(at), high, wide * (config.n_layer + 2)), np.uint8)

    def put(column: int, top: int, rows: int, found: Mapping[str, Floats], names: Sequence[str]) -> None:
        for picture, t in zip(pictures, at, strict=True):
            place = picture[top : top + rows, column * wide : (column + 1) * wide]
            place[:] = _bytes(rows_of(found, names, t - 1), wide, rows)  # of what went in before token t came out

    for first in range(0, config.n_layer, BLOCKS_AT_ONCE):
        blocks = {i: stages(config, i) for i in range(first, min(first + BLOCKS_AT_ONCE, config.n_layer))}
        wanted = [n for cells in blocks.values() for _, names in cells for n in names]
        _, found = model.run_with_cache(ids, [EMBED, *wanted])
        for block, cells in blocks.items():
            for line, (_, names) in enumerate(cells):
                put(1 + block, line * CELL[1], CELL[1], found, names)
    put(0, 0, high, found, [EMBED])
    put(config.n_layer + 1, 0, high, {LOGITS: logits}, [LOGITS])
    return {
        "cell": list(CELL),
        "at": at,
        "pictures": [base64.b64encode(picture.tobytes()).decode() for picture in pictures],
    }


def _bytes(values: Floats, wide: int, high: int) -> NDArray[np.uint8]:
    """A matrix at this size, by the nearest value: 127 for zero, 0 and 254 where a colour is at its strongest."""
    values = folded(values, ASPECT * CELL[1] / high)
    rows, columns = (np.arange(n) * size // n for n, size in ((high, len(values)), (wide, values.shape[1])))
    far = max(REACH * float(np.abs(values).mean()), 1e-30)
    shown: NDArray[np.uint8] = np.rint(127 + 127 * np.clip(values[np.ix_(rows, columns)] / far, -1, 1)).astype(np.uint8)
    return shown
