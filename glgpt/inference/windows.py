"""Runs whole texts side by side, without KV caches, to compute their logits or the loss of each token.

Each program has one entry (a named list of passes).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from glgpt import ops
from glgpt.errors import GlgptError
from glgpt.gl.player import Player
from glgpt.inference.programs import own_bytes
from glgpt.models.context import largest_context
from glgpt.models.network import Batch, Network
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.program.kernel import Kernel
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits, Program
from glgpt.program.weight_formats import WeightFormats

MAX_TEXTS = 16  # maximum texts in a batch
MAX_BATCH_TOKENS = 2048  # maximum tokens in a batch of several texts: enough to fill a GPU
MAX_SOFTWARE_BATCH_TOKENS = 512  # the same maximum for software OpenGL
MIN_PADDED_TOKENS = 16  # minimum number of tokens to which texts are padded
MAX_LOGITS_BYTES = 1 << 28  # maximum bytes of the logits of a batch of several texts


def windows_program(
    config: ModelConfig, limits: Limits, kernel: Kernel, dtype: WeightFormats, texts: int, tokens: int, losses: bool
) -> Program:
    """Records the entry `read`, which runs `texts` sequences of `tokens` ids from position 0.

    Row t * texts + i of the input `ids.N`, where N = tokens * texts, is token t of sequence i. The output is `logits`,
    of shape `[tokens * texts, vocab]`. With `losses`, the output is the loss of each row instead: -log of the
    probability of the row's id in the input `targets`, or zero if this id is negative.
    """
    rec = Recorder(limits)
    network = Network(rec, config, kernel, dtype, batch=Batch(texts))
    with rec.entry("read"):
        logits = network.logits(network.prefill(tokens))
        if losses:
            targets = rec.fixed("targets", Layout(tokens * texts, 1), "input")
            rec.output(ops.cross_entropy_rows(rec, logits, targets, "losses"), "losses")
    return rec.program()


class Windows:
    """Runs texts with the weights of a player, as many at once as fill the device.

    `most` limits the total bytes of textures, including those of the player (None: no limit).
    """

    def __init__(
        self, player: Player, config: ModelConfig, kernel: Kernel, dtype: WeightFormats, most: int | None
    ) -> None:
        self.main, self.config, self.kernel, self.dtype, self.most = player, config, kernel, dtype, most
        self._known: dict[tuple[int, int, bool], Player] = {}  # by (texts, tokens, losses); at most one player

    def logits(self, texts: Sequence[Sequence[int]]) -> list[Floats]:
        """Returns, for each text, the logits of every position, `[T, vocab]`, which do not depend on other texts."""
        return [found for _, found in self._read([(text, None) for text in texts])]

    def losses(self, texts: Sequence[Sequence[int]]) -> Iterator[Floats]:
        """Yields, for each text, -log of the probability of every token but the first, as float32 `[T - 1]`."""
        for _, found in self._read([(text[:-1], text[1:]) for text in texts]):
            yield found

    def _read(self, texts: Sequence[tuple[Sequence[int], Sequence[int] | None]]) -> Iterator[tuple[int, Floats]]:
        losses = texts[0][1] is not None
        longest, first = max(len(ids) for ids, _ in texts), 0
        while first < len(texts):
            player, size, tokens = self._player(len(texts), longest, losses)  # other calls may have closed a player
            view = player.entry("read").outputs["losses" if losses else "logits"]
            batch = texts[first : first + size]
            ids, targets = np.zeros((tokens, size)), np.full((tokens, size), -1.0)
            for i, (given, wanted) in enumerate(batch):
                ids[:, i] = np.pad(given, (0, tokens - len(given)), mode="edge")  # as in `upload_ids`
                if wanted is not None:
                    targets[: len(wanted), i] = wanted
            for name, numbers in [(f"ids.{tokens * size}", ids), *([("targets", targets)] if losses else [])]:
                texels = np.zeros((tokens * size, 1, 4), np.float32)
                texels[:, 0, 0] = numbers.ravel()
                player.write(name, 0, texels)
            player.play("read")
            rows = view.unpack(player.read(view.texture)).reshape(tokens, size, -1)
            for i, (given, _) in enumerate(batch):
                yield first + i, rows[: len(given), i, 0] if losses else np.ascontiguousarray(rows[: len(given), i])
            first += size

    def _player(self, texts: int, longest: int, losses: bool) -> tuple[Player, int, int]:
        """Returns (player, texts in its batch, padded tokens of a text) for `texts` texts of up to `longest` tokens.

        Raises GlgptError if the model is closed, or if a single text needs too much memory.
        """
        self.main.use()
        most = largest_context(self.config, self.main.device.limits)
        tokens = min(most, max(MIN_PADDED_TOKENS, 1 << (longest - 1).bit_length()))
        if losses:  # these texts mostly have the same length, so finer padding rarely needs another program
            tokens = min(most, -(-longest // MIN_PADDED_TOKENS) * MIN_PADDED_TOKENS)
        size = min(MAX_TEXTS, 1 << (texts - 1).bit_length(), self._room(tokens, losses))
        while True:
            key = (size, tokens, losses)
            if key not in self._known:
                limits = self.main.device.limits
                program = windows_program(self.config, limits, self.kernel, self.dtype, size, tokens, losses)
                needed = self.main.program.nbytes() + own_bytes(program)
                if self.most is not None and needed > self.most:
                    if size == 1:
                        raise GlgptError(
                            f"running this text needs {needed / 2**20:.0f} MiB of textures and --max-texture-memory is "
                            f"{self.most / 2**20:.0f} MiB; allow more"
                        )
                    size //= 2
                    continue
                self.close()
                self._known[key] = Player(self.main.device, program, self.main.options, self.main.shared())
            return self._known[key], size, tokens

    def _room(self, tokens: int, losses: bool) -> int:
        """Returns the maximum number of texts of `tokens` tokens in a batch, a power of two."""
        device = self.main.device
        rows = min(MAX_SOFTWARE_BATCH_TOKENS if device.software else MAX_BATCH_TOKENS, device.limits.max_texture_size)
        rows = min(rows, MAX_LOGITS_BYTES // (4 * self.config.vocab_size))
        return 1 << max(0, (rows // tokens).bit_length() - 1) if rows >= tokens else 1

    @property
    def nbytes(self) -> int:
        """Current texture memory in bytes, without the weights, which belong to the model's player."""
        return sum(own_bytes(player.program) for player in self._known.values())

    def close(self) -> None:
        """Releases the recorded program and its textures."""
        while self._known:
            self._known.popitem()[1].close()
