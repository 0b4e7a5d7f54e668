"""Splits a prompt into chunks of the sizes that a program was recorded for, and uploads them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from glgpt.gl.player import Player
from glgpt.models.part import HIDDEN
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.program.spec import Limits

Rows = Sequence[int] | Floats  # input of a model or a part of one: ids, or hidden states [n, n_embd]
AnyRows = TypeVar("AnyRows", Sequence[int], Floats)

SIZES = (256, 64, 16)  # a chunk of 512 takes as long as two of 256, and more memory and shaders
# For a page, which compiles all shaders before it can be used: chunks of 256 would save a tenth of the time of a long
# prompt, but need a fifth more shaders.
FEW_SIZES = (64, 16)
ONE_TOKEN = 4  # cost of a pass of one token, in tokens of a chunk: reading the weights dominates
PER_CHUNK = 4  # cost of a chunk in addition to its tokens


@dataclass(frozen=True)
class Chunk:
    """Tokens start .. start + valid - 1 of a text, played by an entry recorded for `size` >= `valid` tokens."""

    start: int
    valid: int
    size: int

    @property
    def entry(self) -> str:
        """Name of the entry that plays it."""
        return "decode" if self.size == 1 else f"prefill_{self.size}"

    def of(self, x: AnyRows) -> AnyRows:
        """Returns this chunk's slice of all rows."""
        return x[self.start : self.start + self.valid]


def chunk_sizes(config: ModelConfig, tile_rows: int, limits: Limits, sizes: Sequence[int] = SIZES) -> tuple[int, ...]:
    """Returns those of `sizes` that are recorded for a model, largest first; 1 is always the last."""
    fit = [s for s in sizes if s <= config.context and s // tile_rows * config.n_head <= limits.max_texture_size]
    return (*fit, 1)


def window_start(tokens: int, context: int) -> int:
    """Returns where the window begins from which the token after a text of `tokens` tokens is computed.

    A text longer than the context loses its first tokens, half a context at a time. The rest is read again from
    position 0, since keys depend on their positions and cannot be moved.
    """
    half = max(1, context // 2)
    return max(0, -(-(tokens - context) // half)) * half


def plan(tokens: int, context: int, known: tuple[int, ...], one: int = ONE_TOKEN) -> list[Chunk]:
    """Returns the cheapest chunks of `known` sizes that cover `tokens` from position 0; only the last may be padded.

    Padding writes rows beyond the prompt into the caches. Later tokens overwrite them before they are read, but padding
    must not reach beyond the context. `one` is the cost of a single token.
    """
    best: list[tuple[int, int]] = [(0, 0)] * (tokens + 1)  # for each position: cost of the rest, size of the next chunk
    for at in range(tokens - 1, -1, -1):
        left = tokens - at
        best[at] = min(
            ((one if s == 1 else PER_CHUNK + s) + best[at + min(s, left)][0], s) for s in known if at + s <= context
        )
    chunks: list[Chunk] = []
    at = 0
    while at < tokens:
        size = best[at][1]
        chunks.append(Chunk(at, min(size, tokens - at), size))
        at += chunks[-1].valid
    return chunks


def plan_segments(borders: Sequence[int], tokens: int, context: int, known: tuple[int, ...]) -> list[Chunk]:
    """Returns chunks that cover `tokens` and end at each of `borders`, which ascend: the cheapest between two of them.

    Values in the caches depend, in their last bits, on the chunks that computed them. These chunks depend only on the
    positions of borders up to their end, so a longer text with the same borders begins with the same chunks.
    """
    edges = [0, *(at for at in borders if 0 < at < tokens), tokens]
    return [
        Chunk(start + chunk.start, chunk.valid, chunk.size)
        for start, end in itertools.pairwise(edges)
        for chunk in plan(end - start, context - start, known)
    ]


def upload_ids(player: Player, ids: Sequence[int], size: int) -> None:
    """Uploads the ids of a chunk of `size` tokens, padded with zeros."""
    texels = np.zeros((size, 1, 4), np.float32)
    texels[: len(ids), 0, 0] = ids
    player.write(f"ids.{size}", 0, texels)


def upload_hidden(player: Player, states: Floats, size: int) -> None:
    """Uploads the hidden states `[n, n_embd]` of a chunk of `size` rows.

    Padding repeats the last row, so that all values stay finite in every block.
    """
    view = player.program.views[f"{HIDDEN}.{size}"]
    matrix = np.asarray(states, np.float32)
    if len(states) < size:
        matrix = np.pad(matrix, ((0, size - len(states)), (0, 0)), mode="edge")
    player.write_matrix(view.texture, view, matrix)


def upload_token(player: Player, token: int) -> None:
    """Uploads the id that `decode` reads."""
    texels = np.zeros((1, player.program.textures["token"].width, 4), np.float32)
    texels[0, 0, 0] = token
    player.write("token", 0, texels)
