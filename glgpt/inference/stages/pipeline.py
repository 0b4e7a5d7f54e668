"""Generating over the stages of a split model: a prompt in chunks, under way in all stages at once, then tokens."""

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
from glgpt.inference.stages.drafts import draft
from glgpt.inference.stages.remote import RemoteStage
from glgpt.inference.stages.stage import Answer, Stage
from glgpt.wire.client import REPLAYS, ForgottenError
from glgpt.wire.messages import MAX_COUNT, MOST_GUESSES, Ask

UNDER_WAY = 4  # chunks that a server has at most before it must answer one


@dataclass
class Local:
    """A stage on this machine, with the interface of a remote one."""

    stage: Stage
    ms: float = 0.0
    steps: int = 0
    rows: int = 0
    _answers: deque[Answer] = field(default_factory=deque)

    @property
    def part(self) -> Any:
        """What it holds."""
        return self.stage.part

    @property
    def context(self) -> int:
        """Positions that its caches hold."""
        return self.stage.config.context

    @property
    def pending(self) -> int:
        """Answers that were not taken."""
        return len(self._answers)

    def submit(self, pos: int, x: Rows, ask: Ask | None) -> None:
        """Runs rows pos.. at once."""
        start = time.perf_counter()
        answer = self.stage.answer(pos, x, ask)
        answer.ms = 1000 * (time.perf_counter() - start)
        self.ms, self.steps, self.rows = self.ms + answer.ms, self.steps + 1, self.rows + len(x)
        self._answers.append(answer)

    def ready(self) -> bool:
        """Always: it has run."""
        return True

    def take(self) -> Answer:
        """The oldest answer."""
        return self._answers.popleft()

    def abandon(self) -> None:
        """Leaves answers that nobody waits for any more."""
        self._answers.clear()


class Pipeline:
    """Plays a text through stages, of which the first takes ids and the last chooses tokens.

    As `Decoder`: generations may be interleaved, and each refills the caches when another has used them. Where a server
    has lost its session, its rows are fed again from the text. `speculate`: guesses of the text's next tokens, from
    the text itself, are checked several at a time.
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
        self.held = 0  # rows that every stage has of the text in turn
        self.guessed = self.accepted = 0

    def generate(
        self, ids: list[int], tokens: int, sampler: Sampler, ends: Container[int], run: GenerationStats
    ) -> Iterator[int]:
        """Yields up to `tokens` ids after `ids`, which grow, and slide at a full context; stops at any of `ends`."""
        turn, known, read = object(), deque[int](), 0

        def ready() -> None:
            if check := self._check():
                check()

        def following(wanted: int) -> tuple[int, bool]:
            nonlocal read
            refilled = self._turn is not turn or len(ids) <= read  # another's turn before, or the text has slid
            read = len(ids)
            if refilled:
                self._turn, self.held = turn, 0
            if not known:
                known.extend(self._next(ids, wanted, sampler, tokens - wanted))
            return known.popleft(), refilled

        return continuation(ids, tokens, ends, self.context, run, ready, following)

    def _next(self, ids: list[int], wanted: int, sampler: Sampler, draw: int) -> list[int]:
        """The token behind `ids`, and more where guesses were right."""
        pos = len(ids) - 1
        room = min(MOST_GUESSES, wanted - 1, self.context - len(ids))
        guesses: list[int] = []
        if self.speculate and room > 0 and pos + MOST_GUESSES < self.context and self.held == pos:
            guesses = draft(ids, room)
        if sampler.adjusts:
            raise GlgptError("a split model takes no repetition penalty and no logit bias; run it whole")
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
        """Feeds what the stages do not hold of `ids` and returns the answer to `ask` behind the last.

        Raises GlgptError where a stage answers nothing, or a server cannot be reached again.
        """
        for stage in self.stages:
            if stage.pending:  # an interrupt or an error came before they were taken
                stage.abandon()
                self.held = 0
        for _ in range(REPLAYS):
            try:
                return self._run(ids, ask)
            except ForgottenError as lost:
                self.held = min(self.held, lost.held, len(ids) - 1)
                self._drain()
        raise GlgptError(f"a server lost the text {REPLAYS} times while it read it; is the way to it in order?")

    def _drain(self) -> None:
        """Takes the answers that are still to come, of no use any more."""
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
        if ask.guesses and len(chunks) > 1:  # the rows before were lost: feed them first, and guess nothing
            ask = ask.model_copy(update={"guesses": ()})
        under: list[deque[tuple[int, Ask | None]]] = [deque() for _ in self.stages]
        final: list[Answer] = []

        def feed(at: int, pos: int, x: Rows, wish: Ask | None) -> None:
            if at == len(self.stages):
                return
            while self.stages[at].pending >= UNDER_WAY:
                collect(at)
            self.stages[at].submit(pos, x, wish)
            under[at].append((pos, wish))
            if isinstance(self.stages[at], Local):
                collect(at)

        def collect(at: int) -> None:
            answer = self.stages[at].take()
            pos, wish = under[at].popleft()
            if at + 1 < len(self.stages):
                if answer.hidden is None:
                    raise GlgptError("a stage in the middle of the plan answered without hidden states")
                feed(at + 1, pos, answer.hidden, wish)
            elif wish is not None:
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
            raise GlgptError(f"the last stage of the plan answered with {count} tokens where one was asked for")
        return final[0]
