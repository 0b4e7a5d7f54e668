"""Captures named activations of a model: plays programs that output these activations, and reads their textures.

A chunk is a run of tokens that a program computes at once (`inference.chunks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glgpt.errors import GlgptError
from glgpt.gl.player import Player
from glgpt.inference.chunks import Chunk, Rows, plan, upload_hidden, upload_ids
from glgpt.inference.edits import Edits, Sites
from glgpt.inference.programs import capture_program, own_bytes, recorded_sizes
from glgpt.models.activations import LOGITS
from glgpt.models.context import grown_context
from glgpt.models.part import HIDDEN, Part
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Texels
from glgpt.program.kernel import Kernel
from glgpt.program.layout import View
from glgpt.program.weight_formats import WeightFormats


@dataclass(frozen=True)
class RawTexture:
    """A named tensor as stored in memory: `texels` of shape `[layers, height, width, 4]`, float32 or packed in uint32.

    `view` describes where the texels hold each value of the tensor's matrix. `start` is the position of the first token
    of the chunk that the tensor was computed for.
    """

    texels: Texels
    view: View
    start: int


# Number of older programs that are retained, for example the program without edits while edits are compared; if texture
# memory is limited, none are retained.
KEPT = 2
MIN_CONTEXT = 16  # minimum number of positions of the caches
# Cost of a one-token chunk for `plan`, instead of `ONE_TOKEN`: if every name is captured, a chunk of one token takes
# about as long as a chunk of 16.
ONE_CAPTURED = 16


class Captures:
    """Records capture programs on demand, each for the requested names and chunk sizes, and plays them.

    The programs share the weights of `player`. Their caches have as many positions as the text has ids, rounded up to a
    power of two. `most` limits the total bytes of textures: those of `player`, those of a capture program, and `others`
    (a number of bytes for the caller to set). `part` is the part of the model that `player` runs (None: the whole
    model).
    """

    def __init__(
        self,
        player: Player,
        config: ModelConfig,
        kernel: Kernel,
        dtype: WeightFormats,
        most: int | None,
        part: Part | None = None,
    ) -> None:
        self.player, self.config, self.kernel, self.dtype, self.most = player, config, kernel, dtype, most
        self.part, self.others = part or Part.whole(config), 0
        self.end = LOGITS if self.part.head else HIDDEN
        self._players: dict[tuple[Any, ...], tuple[Player, Sites | None]] = {}

    def config_for(self, tokens: int) -> ModelConfig:
        """Returns the model's configuration with the context that the caches get for this many tokens."""
        limits = self.player.device.limits
        return self.config.with_context(grown_context(self.config, limits, max(tokens, MIN_CONTEXT)))

    def play(
        self, x: Rows, names: Sequence[str], edits: Edits | None = None
    ) -> Iterator[tuple[Chunk, str, RawTexture]]:
        """Runs the model chunk by chunk; after each chunk, yields (chunk, name, texture) for every name.

        `x` are ids or, for a part without the embedding, hidden states `[T, n_embd]`. The name `hidden` is the output
        of a part without the head. `edits` change activations; they must have been made with the configuration
        `config_for(len(x))`.
        """
        player, chunks = self._fitting(len(x), frozenset(names), edits)
        for chunk in chunks:
            if self.part.embed:
                upload_ids(player, chunk.of([int(i) for i in x]), chunk.size)
            else:
                upload_hidden(player, chunk.of(np.asarray(x, np.float32)), chunk.size)
            entry = f"logits_{chunk.size}"
            player.play(entry, pos=chunk.start)
            outputs = player.entry(entry).outputs
            for name in names:
                yield chunk, name, RawTexture(player.read(outputs[name].texture), outputs[name], chunk.start)

    def _fitting(self, tokens: int, names: frozenset[str], edits: Edits | None) -> tuple[Player, list[Chunk]]:
        """Returns a player and the chunks to play; uploads the edits to the player.

        The chunks have the largest sizes with which the program fits into `most` bytes. Raises GlgptError if no program
        fits.
        """
        config = self.config_for(tokens)
        known = tuple(size for size in recorded_sizes(self.player.program) if size <= config.context)
        needed = 0
        for first in range(len(known)):
            chunks = plan(tokens, config.context, known[first:], ONE_CAPTURED)
            sizes = tuple(sorted({c.size for c in chunks}, reverse=True))
            key = (names, sizes, config.context, edits.key if edits else None)
            if key not in self._players:
                device, sites = self.player.device, edits.sites() if edits else None
                how = (config, device.limits, self.kernel, self.dtype, names, sizes)
                program = capture_program(*how, part=self.part, sites=sites)
                needed = self.others + self.player.program.nbytes() + own_bytes(program)
                if self.most is not None and needed > self.most:
                    continue
                self._keep(KEPT if self.most is None else 0)
                self._players[key] = Player(device, program, self.player.options, self.player.shared()), sites
            player, sites = self._players[key] = self._players.pop(key)  # now the most recently used
            if edits and sites:
                sites.write(player, edits)
            return player, chunks
        raise GlgptError(
            f"capturing these activations needs {needed / 2**20:.0f} MiB of textures and --max-texture-memory is "
            f"{(self.most or 0) / 2**20:.0f} MiB; allow more, or ask for fewer names"
        )

    def _keep(self, count: int) -> None:
        while len(self._players) > count:
            self._players.pop(next(iter(self._players)))[0].close()

    @property
    def nbytes(self) -> int:
        """Current texture memory of the capture programs in bytes, without the weights that belong to `player`."""
        return sum(own_bytes(p.program) for p, _ in self._players.values())

    def close(self) -> None:
        """Releases all capture programs and their textures."""
        self._keep(0)
