"""Generates text with the stages of a split model.

The prompt is fed in chunks; while a stage computes a chunk, the next stage computes the previous chunk. The generated
tokens are then fed one by one. A stage is a part of the model, on this machine or on a server. A row is the id or the
hidden state of one token.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from glgpt.errors import GlgptError
from glgpt.inference.chunks import Rows, plan
from glgpt.inference.generation import GenerationStats, continuation
from glgpt.inference.sampling import Sampler, draw_seed
from glgpt.inference.stages.drafts import PromptLookup
from glgpt.inference.stages.remote import RemoteStage
from glgpt.inference.stages.stage import Answer, Stage
from glgpt.wire.client import MAX_REPLAYS, ForgottenError
from glgpt.wire.messages import MAX_COUNT, MAX_GUESSES, Ask

MAX_PENDING = 4  # maximum number of unanswered chunks that a server may have


@dataclass
class Local:
    """A stage on this machine, with the interface of `RemoteStage`."""

    stage: Stage
    ms: float = 0.0
    steps: int = 0
    rows: int = 0
    _answers: deque[Answer] = field(default_factory=deque)

    @property
    def part(self) -> Any:
        """The part that the stage holds."""
        return self.stage.part

    @property
    def context(self) -> int:
        """Number of positions that the stage's caches hold."""
        return self.stage.config.context

    @property
    def pending(self) -> int:
        """Number of answers that `take` has not returned yet."""
        return len(self._answers)

    def submit(self, pos: int, x: Rows, ask: Ask | None) -> None:
        """Runs rows from `pos` on immediately; `take` returns the answer."""
        start = time.perf_counter()
        answer = self.stage.answer(pos, x, ask)
        answer.ms = 1000 * (time.perf_counter() - start)
        self.ms, self.steps, self.rows = self.ms + answer.ms, self.steps + 1, self.rows + len(x)
        self._answers.append(answer)

    def ready(self) -> bool:
        """Returns True: `submit` has already run the rows."""
        return True

    def take(self) -> Answer:
        """Returns the oldest answer."""
        return self._answers.popleft()

    def abandon(self) -> None:
        """Discards the answers that `take` has not returned yet."""
        self._answers.clear()


class Pipeline:
    """Runs a text through stages: the first stage takes ids, and the last stage chooses tokens.

    As in `inference.decoder.Decoder`, generations may be interleaved: before its next token, a generation refills the
    caches if another generation has used them. If a server has lost its session (the caches of the text), the rows are
    fed again. With `speculate`, the next tokens are guessed from the text so far (`PromptLookup`), and up to
    `MAX_GUESSES` guesses are checked at a time.
    """

    def __init__(
        self,
        stages: Sequence[Local | RemoteStage],
        context: int,
        sizes: tuple[int, ...],
        check: Callable[[], None],
        speculate: bool = False,
    ) -> None:
        self.stages, self.context, self.sizes, self.speculate = stages, context, sizes, speculate
        self._check = weakref.WeakMethod(check)
        self._turn: object = None
        self.held = 0  # number of rows of the current text that every stage has
        self.guessed = self.accepted = 0

    def generate(
        self, ids: list[int], tokens: int, sampler: Sampler, ends: Container[int], run: GenerationStats
    ) -> Iterator[int]:
        """Yields up to `tokens` ids that continue `ids`, and appends each to `ids`; stops before an id in `ends`.

        If the context is full, the first tokens of `ids` are dropped before a token is appended. The last token of the
        generation is not appended to a full context.
        """
        turn, known, read, lookup = object(), deque[int](), 0, PromptLookup()

        def ready() -> None:
            if check := self._check():
                check()

        def following(wanted: int) -> tuple[int, bool]:
            nonlocal read, lookup
            slid = len(ids) <= read
            refilled = self._turn is not turn or slid  # another generation used the caches, or tokens were dropped
            read = len(ids)
            if slid:
                lookup = PromptLookup()
            if refilled:
                self._turn, self.held = turn, 0
            if not known:
                known.extend(self._next(ids, wanted, sampler, tokens - wanted, lookup))
            return known.popleft(), refilled

        return continuation(ids, tokens, ends, self.context, run, ready, following)

    def _next(self, ids: list[int], wanted: int, sampler: Sampler, draw: int, lookup: PromptLookup) -> list[int]:
        """Returns the next tokens after `ids`: the correct guesses, and the token after them."""
        pos = len(ids) - 1
        room = min(MAX_GUESSES, wanted - 1, self.context - len(ids))
        guesses: list[int] = []
        if self.speculate and room > 0 and pos + MAX_GUESSES < self.context and self.held == pos:
            lookup.extend(ids[len(lookup.ids) :])
            guesses = lookup.draft(room)
        if sampler.adjusts or sampler.matcher:
            what = "a constraint" if sampler.matcher else "repetition penalty or logit bias"
            raise GlgptError(f"a split model does not support {what}; load it unsplit")
        ask = Ask(
            temperature=float(sampler.temperature),
            top_k=None if sampler.top_k is None else min(sampler.top_k, MAX_COUNT),
            top_p=sampler.top_p,
            min_p=sampler.min_p,
            seed=draw_seed(sampler.seed),
            draw=draw,
            guesses=tuple(guesses),
        )
        answer = self.run(ids, ask)
        self.guessed, self.accepted = self.guessed + len(guesses), self.accepted + len(answer.tokens) - 1
        self.held = len(ids) + len(answer.tokens) - 1
        return answer.tokens

    def run(self, ids: Sequence[int], ask: Ask) -> Answer:
        """Feeds the rows of `ids` that the stages lack; returns the last stage's answer to `ask`.

        Raises GlgptError if a stage does not answer, a server cannot be reached again, or rows are lost too often.
        """
        for stage in self.stages:
            if stage.pending:  # answers remain from a call that was interrupted or failed
                stage.abandon()
                self.held = 0
        for _ in range(MAX_REPLAYS):
            try:
                return self._run(ids, ask)
            except ForgottenError as lost:
                self.held = min(self.held, lost.held, len(ids) - 1)
                self._drain()
        raise GlgptError(
            f"a server lost the text {MAX_REPLAYS} times while reading it; check the network and the server's log"
        )

    def _drain(self) -> None:
        """Takes and discards the outstanding answers."""
        for stage in self.stages:
            while stage.pending:
                try:
                    stage.take()
                except ForgottenError as lost:
                    self.held = min(self.held, lost.held)

    def _run(self, ids: Sequence[int], ask: Ask) -> Answer:
        self.held = min(self.held, len(ids) - 1)
        start = self.held
        chunks = [(start + c.start, c.valid) for c in plan(len(ids) - start, self.context - start, self.sizes)]
        if ask.guesses and len(chunks) > 1:  # earlier rows were lost: feeds them again, without guesses
            ask = ask.model_copy(update={"guesses": ()})
        # By stage: (position, request) of the chunks that the stage has not answered yet.
        under: list[deque[tuple[int, Ask | None]]] = [deque() for _ in self.stages]
        final: list[Answer] = []

        def feed(at: int, pos: int, x: Rows, request: Ask | None) -> None:
            if at == len(self.stages):
                return
            while self.stages[at].pending >= MAX_PENDING:
                collect(at)
            self.stages[at].submit(pos, x, request)
            under[at].append((pos, request))
            if isinstance(self.stages[at], Local):
                collect(at)

        def collect(at: int) -> None:
            answer = self.stages[at].take()
            pos, request = under[at].popleft()
            if at + 1 < len(self.stages):
                if answer.hidden is None:
                    raise GlgptError("a stage in the middle of the plan answered without hidden states")
                feed(at + 1, pos, answer.hidden, request)
            elif request is not None:
                final.append(answer)

        for i, (pos, n) in enumerate(chunks):
            last = i == len(chunks) - 1
            feed(0, pos, [*ids[pos : pos + n], *(ask.guesses if last else ())], ask if last else None)
            for at in range(len(self.stages)):
                while under[at] and self.stages[at].ready():
                    collect(at)
        for at in range(len(self.stages)):
            while under[at]:
                collect(at)
        if not final or not 1 <= len(final[0].tokens) <= len(ask.guesses) + 1:
            count = len(final[0].tokens) if final else 0
            expected = f"1 to {len(ask.guesses) + 1}" if ask.guesses else "1"
            raise GlgptError(f"the last stage of the plan answered with {count} tokens; expected {expected}")
        return final[0]
