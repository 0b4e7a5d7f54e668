"""Texts that clients feed to one part of a model: a cache each, at most so many, the least recently used evicted."""

from __future__ import annotations

import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from glgpt.errors import GlgptError
from glgpt.inference.chunks import Rows
from glgpt.inference.programs import ROWS
from glgpt.inference.stages.batched_stage import BatchedStage, SessionCache, StepInput
from glgpt.inference.stages.stage import Answer
from glgpt.ops import MOST_ROWS
from glgpt.wire.messages import EVICTED, ORDER, Ask


class LapsedError(GlgptError):
    """A session that must be begun anew; `code` is the message's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Session:
    """A text under way: `held` rows are in its caches. `key` is a secret that only its client knows."""

    ran_by: BatchedStage | None = None  # None where another process runs it
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    held: int = 0
    seq: int = -1  # of the last step
    reply: bytes = b""  # to the last step
    used: float = field(default_factory=time.monotonic)
    client: str = ""  # who opened it last
    caches: SessionCache | None = None  # None until its first step, and again once it was evicted
    evicted: bool = False

    @property
    def texts(self) -> BatchedStage:
        """What runs it here."""
        assert self.ran_by, "this session runs elsewhere"
        return self.ran_by


class Sessions:
    """At most `most` sessions with caches, on any number of stages of one device; used in the device's thread.

    Caches are made when they are first needed and then handed on: a session that ends leaves them to the next of its
    stage, which writes every row before it reads it.
    """

    def __init__(self, most: int, age: float) -> None:
        self.most, self.age = most, age
        self._free: list[tuple[BatchedStage, SessionCache]] = []
        self._made = 0
        self._live: OrderedDict[str, Session] = OrderedDict()  # with caches, the least recently used first
        self.evictions = 0

    @property
    def side_by_side(self) -> int:
        """How many sessions one pass may serve."""
        return min(self.most, MOST_ROWS)

    def __len__(self) -> int:
        return len(self._live)

    def use(self, texts: BatchedStage) -> bool:
        """Whether a session with caches runs on this stage."""
        return any(session.ran_by is texts for session in self._live.values())

    def find(self, key: str | None, texts: BatchedStage, client: str = "") -> Session:
        """The session of this key on this stage, or a new one where there is none any more."""
        self._expire()
        found = self._live.get(key) if key else None
        session = found if found and found.ran_by is texts else Session(texts)
        session.client = client
        return session

    def step(self, session: Session, pos: int, x: Rows, ask: Ask | None) -> Answer:
        """Runs rows pos.. of a session. Raises LapsedError where it was evicted or lacks the rows before them.

        Raises GlgptError for rows beyond the context, or guesses that do not go with them.
        """
        self._check(session, pos, len(x), ask)
        fed = StepInput(self._use(session), pos, x, ask)
        session.held = pos  # in case it fails half way
        answer = session.texts.answer(fed)
        session.held = fed.caches.held
        return answer

    def steps(self, steps: Sequence[tuple[Session, int, Rows, Ask | None]]) -> list[Answer | GlgptError]:
        """Runs one row of each of up to `side_by_side` sessions of one stage in one pass: what `step` gives.

        No session may be there twice.
        """
        found: list[Answer | GlgptError | None] = [self._refused(session, pos, ask) for session, pos, _, ask in steps]
        good = [i for i, error in enumerate(found) if error is None]
        for i in good:
            self._touch(steps[i][0])  # all of them, so that none is evicted for another
        fed = [StepInput(self._use(steps[i][0]), *steps[i][1:]) for i in good]
        for i, one in zip(good, fed, strict=True):
            steps[i][0].held = one.pos
        answers = steps[0][0].texts.answers(fed) if fed else []
        for i, one, answer in zip(good, fed, answers, strict=True):
            found[i] = answer
            if isinstance(answer, Answer):
                steps[i][0].held = one.caches.held
        return [answer for answer in found if answer is not None]

    def _refused(self, session: Session, pos: int, ask: Ask | None) -> GlgptError | None:
        try:
            self._check(session, pos, 1, ask)
        except GlgptError as error:
            return error
        return None

    def _check(self, session: Session, pos: int, n: int, ask: Ask | None) -> None:
        context = session.texts.config.context
        if pos + n > context:
            raise GlgptError(f"rows {pos} to {pos + n - 1} are beyond this server's context of {context} (--context)")
        if ask and ask.guesses and (n != len(ask.guesses) + 1 or pos + ROWS > context):
            raise GlgptError(f"{len(ask.guesses)} guesses do not go with {n} rows from {pos}")
        if session.evicted or not session.texts.open:
            message = f"the session was evicted: the server holds {self.most} at most, for {self.age:.0f} s of idling"
            raise LapsedError(EVICTED, message)
        if pos > session.held:
            raise LapsedError(ORDER, f"a step at {pos} of a session that holds {session.held} rows")

    def _use(self, session: Session) -> SessionCache:
        """The session's caches, used now."""
        if session.caches is None:
            session.caches = self._caches(session)
        self._live[session.key] = session
        self._touch(session)
        return session.caches

    def _touch(self, session: Session) -> None:
        if session.key in self._live:
            self._live.move_to_end(session.key)
        session.used = time.monotonic()

    def end(self, session: Session) -> None:
        """Takes the session's caches back."""
        if self._live.pop(session.key, None) and session.caches:
            session.texts.forget(session.caches)
            self._free.append((session.texts, session.caches))
            session.caches = None

    def _caches(self, session: Session) -> SessionCache:
        self._expire()
        texts = session.texts
        if not self._free and self._made == self.most:
            self._evict(self._superfluous(session.client))
        for i, (whose, caches) in enumerate(self._free):
            if whose is texts:
                del self._free[i]
                return caches
        if self._made == self.most:  # another stage's must go
            self._release(*self._free.pop(0))
        caches = texts.caches()  # may be refused
        self._made += 1
        return caches

    def _superfluous(self, client: str) -> Session:
        """The session to evict for a new one: of the clients that then have most, the one used least recently."""
        counts = Counter([client, *(session.client for session in self._live.values())])
        most = max(counts.values())
        return next(session for session in self._live.values() if counts[session.client] == most)

    def _release(self, texts: BatchedStage, caches: SessionCache) -> None:
        self._made -= 1
        texts.release(caches)

    def _expire(self) -> None:
        """Evicts what has idled for too long."""
        oldest = time.monotonic() - self.age
        for session in list(self._live.values()):
            if session.used < oldest:
                self._evict(session)

    def _evict(self, session: Session) -> None:
        self.evictions += 1
        self.end(session)
        session.evicted, session.held, session.reply = True, 0, b""

    def drop(self, texts: BatchedStage) -> None:
        """Evicts the sessions of a stage, and releases its caches."""
        for session in list(self._live.values()):
            if session.texts is texts:
                self._evict(session)
        for whose, caches in self._free:
            if whose is texts:
                self._release(whose, caches)
        self._free = [(whose, caches) for whose, caches in self._free if whose is not texts]
        texts.close()
