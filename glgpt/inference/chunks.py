"""Cutting a prompt into the chunk sizes that were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from glgpt.gl.player import Player
from glgpt.models.part import HIDDEN
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.program.spec import Limits

Rows = Sequence[int] | Floats  # what is fed to a model or a part of one: ids, or hidden states [n, n_embd]
AnyRows = TypeVar("AnyRows", Sequence[int], Floats)

SIZES = (256, 64, 16)  # 512 at once take as long as twice 256, and memory and shaders of their own
# Where shaders are compiled before anything can be used, as in a page: 256 at once would save a tenth of a long prompt,
# and need a fifth more shaders.
FEW_SIZES = (64, 16)
ONE_TOKEN = 4  # what a pass of one token costs, in tokens of a chunk: it is bound by reading the weights
PER_CHUNK = 4  # and what each chunk costs beyond its tokens


@dataclass(frozen=True)
class Chunk:
    """Tokens start .. start + valid - 1, played by an entry recorded for `size` >= `valid` tokens."""

    start: int
    valid: int
    size: int

    @property
    def entry(self) -> str:
        """The entry that plays it."""
        return "decode" if self.size == 1 else f"prefill_{self.size}"

    def of(self, x: AnyRows) -> AnyRows:
        """This chunk's share of all rows."""
        return x[self.start : self.start + self.valid]


def chunk_sizes(config: ModelConfig, tile_rows: int, limits: Limits, sizes: Sequence[int] = SIZES) -> tuple[int, ...]:
    """Those of `sizes` that are recorded for a model, greatest first; one token is always among them."""
    fit = [s for s in sizes if s <= config.context and s // tile_rows * config.n_head <= limits.max_texture_size]
    return (*fit, 1)


def window_start(tokens: int, context: int) -> int:
    """Where the part of a text of so many tokens begins that the next one is computed from.

    A text longer than the context loses half a context of its first tokens at a time, and the rest is read anew, from
    position 0: keys hold their positions, and cannot be moved.
    """
    half = max(1, context // 2)
    return max(0, -(-(tokens - context) // half)) * half


def plan(tokens: int, context: int, known: tuple[int, ...], one: int = ONE_TOKEN) -> list[Chunk]:
    """The cheapest chunks of `known` sizes that cover `tokens` from position 0; only the last may be padded.

    Padding writes rows beyond the prompt into the caches, where later tokens overwrite them before any reads them, so
    it must not reach beyond the context. `one` is what a single token costs.
    """
    best: list[tuple[int, int]] = [(0, 0)] * (tokens + 1)  # from each position on: cost, size of the next chunk
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


def upload_ids(player: Player, ids: Sequence[int], size: int) -> None:
    """Uploads the ids of a chunk of `size` tokens, padded with zeros."""
    texels = np.zeros((size, 1, 4), np.float32)
    texels[: len(ids), 0, 0] = ids
    player.write(f"ids.{size}", 0, texels)


def upload_hidden(player: Player, states: Floats, size: int) -> None:
    """Uploads the hidden states `[n, n_embd]` of a chunk of `size` rows.

    It is padded with copies of the last one, which stay finite in every block.
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
