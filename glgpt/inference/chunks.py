"""Splits a prompt into chunks of the sizes that a program was recorded for, and uploads them.

A chunk is a run of tokens that one entry of the program (a named list of passes) computes at once.
"""

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

Rows = Sequence[int] | Floats  # input of a model or of a part of it: token ids, or hidden states [n, n_embd]
AnyRows = TypeVar("AnyRows", Sequence[int], Floats)

SIZES = (256, 64, 16)  # a chunk of 512 would take as long as two of 256, and need more memory and shaders
# Sizes for a web page, where compiling shaders takes long. Chunks of 256 would save a tenth of the time of a long
# prompt, but would need a fifth more shaders.
FEW_SIZES = (64, 16)
# Costs for `plan`; the unit is the time of one token in a larger chunk.
ONE_TOKEN = 4  # cost of a one-token chunk, which is mostly the time to read the weights
PER_CHUNK = 4  # cost of a larger chunk in addition to 1 for each of its tokens


@dataclass(frozen=True)
class Chunk:
    """The tokens at positions start .. start + valid - 1 of a text, and the size of the entry that computes them.

    The entry was recorded for `size` >= `valid` tokens; the input is padded to this size.
    """

    start: int
    valid: int
    size: int

    @property
    def entry(self) -> str:
        """Name of the entry that plays the chunk."""
        return "decode" if self.size == 1 else f"prefill_{self.size}"

    def of(self, x: AnyRows) -> AnyRows:
        """Returns this chunk's ids or hidden states; `x` holds those of the whole text."""
        return x[self.start : self.start + self.valid]


def chunk_sizes(config: ModelConfig, tile_rows: int, limits: Limits, sizes: Sequence[int] = SIZES) -> tuple[int, ...]:
    """Returns those of `sizes` (descending) that a model's context and the device's limits allow, followed by 1.

    `tile_rows` is the number of rows that a fragment of a matrix product computes.
    """
    fit = [s for s in sizes if s <= config.context and s // tile_rows * config.n_head <= limits.max_texture_size]
    return (*fit, 1)


def window_start(tokens: int, context: int) -> int:
    """Returns the first position of the window: the part of a text of `tokens` tokens that the model still reads.

    A text longer than the context loses its first tokens, half a context at a time; the window is the rest. The model
    reads the window again from position 0, because keys depend on their positions and cannot be moved.
    """
    half = max(1, context // 2)
    return max(0, -(-(tokens - context) // half)) * half


def plan(tokens: int, context: int, known: tuple[int, ...], one: int = ONE_TOKEN) -> list[Chunk]:
    """Returns the cheapest list of chunks, each of one of the `known` sizes, that covers positions 0 .. `tokens` - 1.

    Only the last chunk may be padded. Padding writes rows after the prompt into the caches. Later tokens overwrite
    these rows before they are read, but padding must not reach beyond the context. `one` is the cost of a one-token
    chunk.
    """
    best: list[tuple[int, int]] = [(0, 0)] * (tokens + 1)  # by position: (cost from it to the end, next chunk's size)
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
    """Returns chunks that cover `tokens` tokens and do not cross the `borders`, which are ascending positions.

    Between two borders, the chunks are those of `plan`. A longer text with the same first borders begins with the same
    chunks, because the chunks before a border depend only on this border and the earlier ones. This matters because
    values in the caches depend, in their last bits, on the chunks in which they were computed.
    """
    edges = [0, *(at for at in borders if 0 < at < tokens), tokens]
    return [
        Chunk(start + chunk.start, chunk.valid, chunk.size)
        for start, end in itertools.pairwise(edges)
        for chunk in plan(end - start, context - start, known)
    ]


def upload_ids(player: Player, ids: Sequence[int], size: int) -> None:
    """Uploads ids, padded to a chunk of `size` tokens.

    Padding repeats the last id. The values of another token might overflow to infinity; attention multiplies the
    values of padding by zero, and infinity times zero is NaN.
    """
    texels = np.zeros((size, 1, 4), np.float32)
    texels[:, 0, 0] = np.pad(ids, (0, size - len(ids)), mode="edge")
    player.write(f"ids.{size}", 0, texels)


def upload_hidden(player: Player, states: Floats, size: int) -> None:
    """Uploads hidden states `[n, n_embd]`, padded to a chunk of `size` rows.

    Padding repeats the last row, so that the values of padding are finite in every block: see `upload_ids`.
    """
    view = player.program.views[f"{HIDDEN}.{size}"]
    matrix = np.asarray(states, np.float32)
    if len(states) < size:
        matrix = np.pad(matrix, ((0, size - len(states)), (0, 0)), mode="edge")
    player.write_matrix(view.texture, view, matrix)


def upload_token(player: Player, token: int) -> None:
    """Uploads the token id that the entry `decode` reads."""
    texels = np.zeros((1, player.program.textures["token"].width, 4), np.float32)
    texels[0, 0, 0] = token
    player.write("token", 0, texels)
