"""Named intermediates, from textures to arrays."""

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
from glgpt.models.context import grown_context
from glgpt.models.part import HIDDEN, Part
from glgpt.models.spec import LOGITS, ModelConfig
from glgpt.program.formats import Texels
from glgpt.program.kernel import Kernel
from glgpt.program.layout import View


@dataclass(frozen=True)
class RawTexture:
    """A named tensor as it is in memory: `texels` `[layers, height, width, 4]`, float32 or uint32 (packed halves).

    `view` says which matrix it is; `start` is the position of its chunk's first token.
    """

    texels: Texels
    view: View
    start: int


KEPT = 2  # programs retained next to a new one, such as the plain model's while interventions are compared
SHORTEST = 16  # positions of the caches at least
ONE_CAPTURED = 16  # what a chunk of one token costs when every name is kept: as much as the smallest chunk


class Captures:
    """Programs that look inside a model, recorded for the names and chunk sizes that are asked for.

    They share the weights of the model's own player, and have caches of the length that the ids need, a power of two.
    `most` bounds the bytes of all textures together.
    """

    def __init__(
        self,
        player: Player,
        config: ModelConfig,
        kernel: Kernel,
        dtype: str,
        most: int | None,
        part: Part | None = None,
    ) -> None:
        self.player, self.config, self.kernel, self.dtype, self.most = player, config, kernel, dtype, most
        self.part = part or Part.whole(config)
        self.end = LOGITS if self.part.head else HIDDEN
        self._players: dict[tuple[Any, ...], tuple[Player, Sites | None]] = {}

    def config_for(self, tokens: int) -> ModelConfig:
        """The model with the context that its caches get for this many tokens."""
        limits = self.player.device.limits
        return self.config.with_context(grown_context(self.config, limits, max(tokens, SHORTEST)))

    def play(
        self, x: Rows, names: Sequence[str], edits: Edits | None = None
    ) -> Iterator[tuple[Chunk, str, RawTexture]]:
        """Plays ids, or hidden states `[T, n_embd]`, chunk by chunk and yields the texture of every name after each.

        Of a part without the head, the name `hidden` is what it ends with. `edits`, of `config_for` these rows, change
        activations.
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
        """A player for the largest chunks that fit the memory, which makes these edits, and the chunks."""
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
                needed = self.player.program.nbytes() + own_bytes(program)
                if self.most is not None and needed > self.most:
                    continue
                self._keep(KEPT if self.most is None else 0)
                self._players[key] = Player(device, program, self.player.options, self.player.shared()), sites
            player, sites = self._players[key] = self._players.pop(key)  # used last
            if edits and sites:
                sites.write(player, edits)
            return player, chunks
        raise GlgptError(
            f"looking at this takes {needed / 2**20:.0f} MiB of textures and --max-texture-memory is "
            f"{(self.most or 0) / 2**20:.0f} MiB; allow more, or ask for fewer names"
        )

    def _keep(self, count: int) -> None:
        while len(self._players) > count:
            self._players.pop(next(iter(self._players)))[0].close()

    @property
    def nbytes(self) -> int:
        """Texture memory at present, in bytes, beyond the model's own."""
        return sum(own_bytes(p.program) for p, _ in self._players.values())

    def close(self) -> None:
        """Releases all of them."""
        self._keep(0)
