"""Named intermediates, from textures to arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glgpt.chunks import Chunk
from glgpt.gl.player import Texels
from glgpt.models.config import GPT2Config
from glgpt.program import View
from glgpt.tensor import Floats


@dataclass(frozen=True)
class RawTexture:
    """A named tensor as it lies in memory: `texels` `[layers, height, width, 4]`, float32 or uint32 (packed halves).

    `view` says which matrix it is; `start` is the position of its chunk's first token.
    """

    texels: Texels
    view: View
    start: int


def natural(config: GPT2Config, name: str, matrix: Floats, chunk: Chunk, total: int) -> Floats:
    """A chunk's matrix in its natural shape, without padding: its last axis but one runs over the chunk's tokens.

    Scores and patterns become `[n_head, valid, total]`, q, k and v `[n_head, valid, d_head]`, others `[valid, width]`.
    """
    heads, d = config.n_head, config.d_head
    part = name.rsplit(".", 1)[-1]
    cube: Floats
    if part in ("scores", "pattern"):  # rows are t * n_head + head
        cube = matrix.reshape(-1, heads, matrix.shape[1])[: chunk.valid, :, :total].transpose(1, 0, 2).copy()
        if part == "scores":
            beyond = np.arange(total) > chunk.start + np.arange(chunk.valid)[:, None]
            cube[:, beyond] = -np.inf
        return cube
    if part in ("q", "k", "v"):  # caches: rows are positions, heads are padded
        rows = matrix[chunk.start : chunk.start + chunk.valid]
        cube = rows.reshape(len(rows), heads, -1)[:, :, :d].transpose(1, 0, 2)
        return cube
    rows = matrix[: chunk.valid]
    if part == "z":
        rows = rows.reshape(len(rows), heads, -1)[:, :, :d].reshape(len(rows), -1)
    return rows
