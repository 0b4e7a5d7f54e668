"""Generates tokens with a player, which plays the entries (named lists of passes) of a program.

A state is a texture that keeps its contents from one entry to the next, such as the caches of keys and values. A chunk
is a run of tokens that one entry computes at once (`inference.chunks`).
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path

from glgpt.errors import GlgptError
from glgpt.gl.player import Player
from glgpt.gl.readback import Readback
from glgpt.inference import programs
from glgpt.inference.chunks import Chunk, plan, upload_ids, upload_token
from glgpt.inference.constraints.masking import MaskedSampling
from glgpt.inference.constraints.matcher import Matcher
from glgpt.inference.generation import END, GenerationStats, continuation
from glgpt.inference.sampling import NOT_FINITE, Sampler, recorded
from glgpt.inference.saved.prefix import SavedPrefix, save_prefix
from glgpt.program.formats import Floats
from glgpt.program.spec import Program


class Decoder:
    """Plays the entries of `programs.record_generation` on a player whose weights are loaded and prepared.

    Generations may be interleaved: before its next token, a generation refills the caches if another generation has
    used them. `check` is called before each token: a trainer passes a method that prepares the weights, and a model
    passes a method that raises if the model is closed. Unless the sampler adjusts logits, the device samples the
    tokens. If the sampler has no constraint either, the device computes the next token while a token is read back.
    """

    def __init__(self, player: Player, context: int, check: Callable[[], None]) -> None:
        self.context = context
        self._check = weakref.WeakMethod(check)  # a method of the model or trainer that holds this decoder
        self._masked: MaskedSampling | None = None
        self.attach(player)

    def attach(self, player: Player) -> None:
        """Switches to another player; active generations then fill the caches of that player."""
        self.close()
        self.player = player
        self._sizes = programs.recorded_sizes(player.program)
        self._turn: object = None  # the generation whose tokens the caches hold, if any
        self._kept: list[tuple[Chunk, list[int]]] = []  # reusable chunks in the caches, with their ids
        self._chosen = Readback(player, ("token",), 2)
        self._logits = player.program.views["logits"]
        self.cached = 0  # of the prompt last given to `first`: number of tokens that the caches already held

    def replace(self, program: Program, context: int) -> None:
        """Switches to a program with caches of another length; active generations then refill the caches.

        If the weights cannot be prepared for the program, the player is closed: see `Player.replace`.
        """
        self.close()
        self.player.replace(program)
        try:
            self.player.play("prepare")
        except BaseException:
            self.player.close()
            raise
        self.context, self._sizes = context, programs.recorded_sizes(program)
        self.forget()

    def close(self) -> None:
        """Releases the GL objects of constrained sampling; they are created again when needed."""
        if self._masked:
            self._masked.close()
            self._masked = None

    def forget(self) -> None:
        """Invalidates the caches, for example after the weights have changed."""
        self.interrupt()
        self._kept = []

    def interrupt(self) -> None:
        """Makes active generations refill the caches; chunks that a chat may reuse stay valid."""
        self._turn = None

    def save(self, path: Path, about: Mapping[str, str]) -> int:
        """Saves the chunks in the caches (`save_prefix`); returns the number of tokens saved."""
        return save_prefix(path, self.player, self._kept, about)

    def restore(self, saved: SavedPrefix) -> int:
        """Fills the caches with saved chunks for later prompts; returns the number of tokens."""
        kept = saved.load(self.player, self._sizes)
        self.interrupt()
        self._kept = kept
        return saved.tokens

    @property
    def masked(self) -> MaskedSampling:
        """The object that chooses tokens under a constraint; it uses the states of this decoder's player."""
        if self._masked is None:
            self._masked = MaskedSampling(self.player)
        return self._masked

    def logits(self) -> Floats:
        """Returns the logits `[vocab]` of the token that follows the last computed token."""
        row: Floats = self._logits.unpack(self.player.read(self._logits.texture))[0]
        return row

    @property
    def sizes(self) -> tuple[int, ...]:
        """The chunk sizes, largest first; 1 is the last."""
        return self._sizes

    def held(self, ids: Sequence[int], chunks: Sequence[Chunk]) -> int:
        """Returns the number of leading `chunks` of `ids` that the caches hold."""
        pairs = zip(self._kept, chunks, strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == (pair[1], list(pair[1].of(ids))), pairs))

    def fill(self, ids: list[int], chunks: Sequence[Chunk]) -> int:
        """Fills the caches with the chunks of `ids`; returns the number of tokens computed.

        The caches may already hold the first chunks; these are not computed again.
        """
        self._turn = None
        return self._prefill(ids, chunks, logits=False)

    def generate(
        self,
        ids: list[int],
        tokens: int,
        sampler: Sampler,
        ends: Container[int],
        run: GenerationStats,
        begin: Callable[[], None] = lambda: None,
        chunks: Sequence[Chunk] | None = None,
        drawn: int = 0,
    ) -> Iterator[int]:
        """Yields up to `tokens` ids that continue `ids`, and appends each to `ids`; stops before an id in `ends`.

        If the context is full, the first tokens of `ids` are dropped before a token is appended. The last token of the
        generation is not appended to a full context. `run` receives the statistics. `begin` is called each time
        before the caches are filled. With `chunks`, the prompt is read in these chunks; those that the caches already
        hold are not computed again. `drawn` is the number of tokens that the sampler has drawn before.
        """
        given = chunks
        turn, read = object(), 0

        def ready() -> None:
            if check := self._check():
                check()
            if sampler.entry and not sampler.adjusts:
                self.player.prepare(sampler.entry)  # compiles shaders outside the first token's measured time

        def following(wanted: int) -> tuple[int, bool]:
            nonlocal read, given
            # True for the first token, after another generation used the caches, and after tokens were dropped.
            refilled = self._turn is not turn or len(ids) <= read
            read = len(ids)
            if refilled:
                self._turn = turn
                begin()
                if given is not None:
                    run.prefill_tokens = self._prefill(ids, given)
                    run.cached_tokens, given = len(ids) - run.prefill_tokens, None
                else:
                    self._prefill(ids)
                self._chosen.drop()  # discards tokens of another generation
            token = self._next(ids, refilled, wanted, sampler, drawn + tokens - wanted)
            if sampler.matcher and token != END:
                sampler.matcher.accept(token)
            return token, refilled

        return continuation(ids, tokens, ends, self.context, run, ready, following)

    def first(
        self,
        ids: list[int],
        samplers: Sequence[Sampler],
        steps: Sequence[int],
        chunks: Sequence[Chunk] | None = None,
    ) -> list[int | None]:
        """Returns the token that each sampler draws after `ids`, or END; sampler i has drawn `steps[i]` tokens before.

        If a sampler fails, its token is None, and its `error` is set. The caller must pass each token to its sampler's
        matcher. Afterwards the caches hold `ids` but belong to no generation. With `chunks`, `ids` are read in these
        chunks; those that the caches already hold are not computed again.
        """
        self.interrupt()
        self.cached = len(ids) - self._prefill(ids, chunks)
        self._chosen.drop()
        best, found = self.player.read("token")[0], list[int | None]([None] * len(samplers))
        for i, (sampler, step) in enumerate(zip(samplers, steps, strict=True)):
            self.player.write("token", 0, best)  # overwrites the previous sampler's token
            with recorded(sampler, found, i):
                found[i] = self._next(ids, True, 1, sampler, step)
        return found

    def _next(self, ids: list[int], refilled: bool, wanted: int, sampler: Sampler, step: int) -> int:
        """Returns the token that follows `ids`, or END; `step` is the number of tokens generated before it.

        If the device samples and the caches were not refilled for this token, also starts computing the token after it.
        `wanted` is the number of tokens still to be returned, including this one.
        """
        if sampler.matcher:
            return self._constrained(ids, refilled, wanted, sampler, sampler.matcher, step)
        if sampler.adjusts:  # the host samples, so the next token cannot be started yet
            if not refilled:
                self.player.play("decode", pos=len(ids) - 1)
            return self._from_row(ids, sampler, step)
        if refilled:
            self._choose(sampler, step)
        else:
            if not len(self._chosen):
                self._play_ahead(len(ids) - 1, sampler, step)
            if wanted > 1 and len(ids) < self.context:
                self._play_ahead(len(ids), sampler, step + 1)
        token, _, broken, undecided = self._chosen.take()[0][0, 0, 0]
        if broken:
            raise GlgptError(NOT_FINITE)
        return self._from_row(ids, sampler, step) if undecided else int(token)

    def _constrained(
        self, ids: list[int], refilled: bool, wanted: int, sampler: Sampler, matcher: Matcher, step: int
    ) -> int:
        """Returns the next token under a constraint (see `_next`), or END if the text is complete.

        If the device samples and more tokens are wanted, also starts computing the logits that follow the token. The
        device computes these logits while the host finds the tokens that may come next.
        """
        if matcher.complete:
            return END
        if sampler.adjusts:
            if not refilled:
                self.player.play("decode", pos=len(ids) - 1)
            return self._from_row(ids, sampler, step)
        self.masked.play(sampler, matcher, step, self._logits.cols)
        self._chosen.start()
        more = wanted > 1 and len(ids) < self.context
        # If the draw is undecided (`inference.sampling`), the host needs the logits, but an early `decode` overwrites
        # them. Another `decode` then computes them again, except after a refill: a prefill computed those logits, and
        # `decode` would not give the same bits.
        ahead = more and not refilled
        if ahead:
            self.player.play("decode", pos=len(ids))
        token, _, broken, undecided = self._chosen.take()[0][0, 0, 0]
        if broken:
            raise GlgptError(NOT_FINITE)
        if undecided:
            if ahead:
                upload_token(self.player, ids[-1])
                self.player.play("decode", pos=len(ids) - 1)
            token = self._from_row(ids, sampler, step)
        if more and (refilled or undecided):
            self.player.play("decode", pos=len(ids))
        return int(token)

    def _play_ahead(self, position: int, sampler: Sampler, step: int) -> None:
        """Decodes the token that the device chose last, and starts sampling its successor."""
        self.player.play("decode", pos=position)
        self._choose(sampler, step)

    def _choose(self, sampler: Sampler, step: int) -> None:
        """Starts sampling on the device from the logits stored there, and starts reading the chosen token back."""
        if sampler.entry:
            self.player.play(sampler.entry, **sampler.scalars(step, self._logits.cols))
        self._chosen.start()

    def _from_row(self, ids: list[int], sampler: Sampler, step: int) -> int:
        """Samples the token after `ids` on the host and returns it; discards a token that the device computed ahead."""
        if len(self._chosen):
            self._chosen.drop()
            upload_token(self.player, ids[-1])
            self.player.play("decode", pos=len(ids) - 1)
        token = sampler.choose(sampler.adjusted(self.logits(), ids), step)
        upload_token(self.player, token)
        return token

    def _prefill(self, ids: Sequence[int], chunks: Sequence[Chunk] | None = None, logits: bool = True) -> int:
        """Computes the chunks of `ids` that the caches lack; returns the number of tokens computed.

        With `logits`, always computes the last chunk, from which the logits come. Without `chunks`, computes all of
        `ids`, and none of the chunks can be reused later.
        """
        wanted = plan(len(ids), self.context, self._sizes) if chunks is None else chunks
        named = [(chunk, list(chunk.of(ids))) for chunk in wanted]
        same = 0 if chunks is None else self.held(ids, chunks)
        first = min(same, len(named) - 1) if logits else same
        self._kept = named[:first]
        for chunk, own in named[first:]:
            if chunk.size == 1:
                upload_token(self.player, own[0])
                self.player.play("decode", pos=chunk.start)
            else:
                upload_ids(self.player, own, chunk.size)
                self.player.play(f"prefill_{chunk.size}", pos=chunk.start, row=chunk.valid - 1)
            if chunks is not None:
                self._kept.append((chunk, own))
        return sum(chunk.valid for chunk, _ in named[first:])
