"""Runs a stage: one part of a split model on this machine's device, with KV caches for one text.

`Stage.session` returns a stage for another text. A row is a token id or a hidden state at one position.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import weight_formats
from glgpt.errors import GlgptError
from glgpt.gl.player import Player
from glgpt.inference import programs
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.capture import Captures
from glgpt.inference.chunks import Rows, plan, upload_hidden, upload_ids, upload_token
from glgpt.inference.sampling import NOT_FINITE, Sampler
from glgpt.models.activations import LOGITS, K, V, in_block
from glgpt.models.context import first_context
from glgpt.models.part import HIDDEN, Part
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.program.kernel import Kernel
from glgpt.program.weight_formats import WeightFormats
from glgpt.tuning.kernel_selection import DeviceSettings
from glgpt.wire.messages import Ask


@dataclass
class Answer:
    """The result of a stage for some rows: hidden states `[n, n_embd]`, or the requested tokens.

    `top` has a list for each requested token: (id, probability, probability after sampling settings) of the token
    itself, then of the likeliest tokens at its place. `logits` `[vocab]` are the logits after the last row. `ms` is the
    stage's time in milliseconds.
    """

    hidden: Floats | None = None
    tokens: list[int] = field(default_factory=list)
    top: list[list[tuple[int, float, float]]] = field(default_factory=list)
    logits: Floats | None = None
    ms: float = 0.0


class Stage:
    """A part of a model on a device: takes rows, returns hidden states or tokens. `close` releases its GL objects.

    A stage must be used in the thread that created it. Rows must be fed in the order of their positions; feeding a
    position again discards the later rows.
    """

    def __init__(
        self,
        player: Player,
        part: Part,
        config: ModelConfig,
        kernel: Kernel,
        formats: WeightFormats,
        parent: Stage | None = None,
    ) -> None:
        """Call `load` or `session` instead."""
        self.player, self.part, self.config, self._parent = player, part, config, parent
        self.kernel, self.formats = kernel, formats
        self.sizes = programs.recorded_sizes(player.program)

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        part: Part,
        dtype: str | None = None,
        *,
        context: int | None = None,
        max_texture_memory: int | None = None,
        progress: programs.Progress | None = None,
        **device: Any,
    ) -> Stage:
        """Loads the part's tensors, and no others; `device` are fields of `DeviceSettings`.

        The caches hold `context` positions; the default is the model's number of positions, but at most 2,048 and at
        most the device's maximum texture size.

        Raises GlgptError as `glgpt.LanguageModel.from_pretrained` does.
        """
        formats = weight_formats(checkpoint, dtype)
        settings = DeviceSettings(**device)
        opened, choice = settings.open()
        positions = first_context(checkpoint.config, opened.limits, context)
        config = checkpoint.config.with_context(positions, settings.half_caches)
        limits, kernel = opened.limits, choice.kernel
        program = programs.fitting_program(config, checkpoint.path, limits, kernel, formats, max_texture_memory, part)
        player = Player(opened, program, choice.options)
        try:
            programs.load_weights(player, checkpoint, progress)
        except BaseException:
            player.close()
            raise
        return cls(player, part, config, kernel, formats)

    def session(self) -> Stage:
        """Returns a stage with the same weights and its own caches, for another text; close it before this stage."""
        return Stage(self.player.fork(self.caches), self.part, self.config, self.kernel, self.formats, self)

    def narrowed(self, part: Part, most: int | None = None) -> Stage:
        """Returns a stage for a subset of this stage's part, with the same weights and caches.

        Close the new stage before this one. Raises GlgptError if the textures that are not shared take more than `most`
        bytes.
        """
        player = self.player
        program = programs.generation_program(self.config, player.device.limits, self.kernel, self.formats, part)
        given = player.shared() | player.shared("state")
        shared = {name: texture for name, texture in given.items() if name in program.textures}
        needed = sum(texture.nbytes for name, texture in program.textures.items() if name not in shared)
        if most is not None and needed > most:
            raise GlgptError(
                f"{part} needs {needed / 2**20:.1f} MiB of textures and --max-texture-memory leaves "
                f"{max(0, most) / 2**20:.1f} MiB; start the server with a larger limit or fewer --sessions"
            )
        return Stage(
            Player(player.device, program, player.options, shared), part, self.config, self.kernel, self.formats, self
        )

    def captures(self, most: int | None = None, part: Part | None = None) -> Captures:
        """Returns an object that captures activations of this stage, or of `part`; close it before the stage."""
        return Captures(self.player, self.config, self.kernel, self.formats, most, part or self.part)

    @property
    def caches(self) -> frozenset[str]:
        """The names of the textures that hold keys and values."""
        return frozenset(in_block(i, part) for i in self.part.blocks for part in (K, V))

    @property
    def session_bytes(self) -> int:
        """Texture memory of one session in bytes."""
        return sum(self.player.program.textures[name].nbytes for name in self.caches)

    @property
    def texture_bytes(self) -> int:
        """Texture memory in bytes; that of the caches alone if `session` or `narrowed` returned this stage."""
        if not self.player.textures:
            return 0
        return self.session_bytes if self._parent else self.player.program.nbytes()

    def feed(self, pos: int, x: Rows) -> Floats | None:
        """Runs rows from `pos` on and returns their hidden states `[n, n_embd]`.

        With the head, returns None; `logits` then returns the logits of the last row.
        """
        found = []
        for chunk in plan(len(x), self.config.context - pos, self.sizes):
            entry = chunk.entry
            self._write(x[chunk.start : chunk.start + chunk.valid], chunk.size)
            self.player.play(entry, pos=pos + chunk.start, row=chunk.valid - 1)
            if not self.part.head:
                found.append(self._read(entry, HIDDEN)[: chunk.valid])
        return np.concatenate(found) if found else None

    def rows(self, pos: int, x: Rows) -> Floats:
        """Runs up to eight rows; returns the hidden states `[n, n_embd]` or, with the head, logits `[n, vocab]`."""
        entry = f"rows_{programs.ROWS}"
        self._write(x, programs.ROWS)
        self.player.play(entry, pos=pos, row=len(x) - 1)
        found: Floats = self._read(entry, LOGITS if self.part.head else HIDDEN)[: len(x)]
        return found

    def logits(self) -> Floats:
        """Returns the logits `[vocab]` of the last row fed."""
        found: Floats = self._read("decode", LOGITS)[0]
        return found

    def answer(self, pos: int, x: Rows, ask: Ask | None) -> Answer:
        """Runs rows from `pos` on; the stage with the head also chooses the tokens that `ask` requests.

        If `ask` contains guesses, every stage uses `rows`. Raises GlgptError if tokens are requested and the logits are
        not finite.
        """
        guessed = ask is not None and bool(ask.guesses)
        if not self.part.head:
            return Answer(hidden=self.rows(pos, x) if guessed else self.feed(pos, x))
        if ask and guessed:
            return self._checked(self.rows(pos, x), ask)
        self.feed(pos, x)
        if ask is None:
            return Answer()
        sampler = sampler_of(ask)
        answer = Answer(logits=self.logits() if ask.logits else None)
        self._draw(answer, sampler, ask, 0)
        return answer

    def _checked(self, logits: Floats, ask: Ask) -> Answer:
        """Draws a token from the logits of each row; ends with the first token that differs from the guess."""
        answer, sampler = Answer(), sampler_of(ask)
        view = self.player.program.views[LOGITS]
        for i, row in enumerate(logits):
            if i and not np.isfinite(row).all():  # ends with the earlier tokens; the next step raises the error
                break
            self.player.write_matrix(view.texture, view, row[None])
            self.player.play("best")
            token = self._draw(answer, sampler, ask, i)
            if i < len(ask.guesses) and token != ask.guesses[i]:
                break
        return answer

    def _draw(self, answer: Answer, sampler: Sampler, ask: Ask, number: int) -> int:
        """Draws a token after `ask.draw + number` earlier draws; adds the token and its alternatives to `answer`.

        The device draws the token from the logits that it holds. If the draw is undecided (`inference.sampling`), the
        sampler draws the token on the host.
        """
        step = ask.draw + number
        if sampler.entry:
            self.player.play(sampler.entry, **sampler.scalars(step, self.config.vocab_size))
        found, _, broken, undecided = self.player.read("token")[0, 0, 0]
        if broken:
            raise GlgptError(NOT_FINITE)
        token = sampler.choose(self.logits(), step) if undecided else int(found)
        answer.tokens.append(token)
        if ask.alternatives:
            answer.top.append(weighed(self.logits(), sampler, token, ask.alternatives))
        return token

    def _write(self, rows: Rows, size: int) -> None:
        """Uploads ids or hidden states for an entry of `size` rows."""
        if not self.part.embed:
            upload_hidden(self.player, np.asarray(rows, np.float32), size)
        elif size == 1:
            upload_token(self.player, int(rows[0]))
        else:
            upload_ids(self.player, [int(i) for i in rows], size)

    def _read(self, entry: str, name: str) -> Floats:
        view = self.player.entry(entry).outputs[name]
        return view.unpack(self.player.read(view.texture))

    def close(self) -> None:
        """Releases its GL objects. Closing twice is harmless."""
        self.player.close()


def sampler_of(ask: Ask) -> Sampler:
    """Returns a sampler with the requested settings."""
    settings = {name: getattr(ask, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")}
    return Sampler(SamplingOptions(**settings))


def weighed(logits: Floats, sampler: Sampler, token: int, count: int) -> list[tuple[int, float, float]]:
    """Returns (id, probability, probability after sampling settings) of a token, then of the `count` likeliest."""
    drawn = sampler.probabilities(logits)
    weights = np.exp(logits.astype(np.float64) - float(logits.max()))
    weights /= weights.sum()
    best = np.argsort(-logits, kind="stable")[:count]
    return [(int(i), float(weights[i]), float(drawn[i])) for i in (token, *best)]
