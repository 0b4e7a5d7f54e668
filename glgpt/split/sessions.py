"""Manages the sessions that use a part (a range of blocks) of a model, and the key-value caches of the sessions.

If all caches are in use, a new session evicts another one: the least recently used session of the client with the most
sessions. If several clients have the most sessions, it evicts the least recently used of all their sessions. Sessions
that run in one forward pass do not evict each other.
"""

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
from glgpt.ops import MAX_ROWS
from glgpt.wire.messages import EVICTED, ORDER, Ask


class LapsedError(GlgptError):
    """Raised if a session must be restarted. `code` is the error code that the client receives: EVICTED or ORDER."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Session:
    """The state of one client's text. The caches hold a row for each of the text's first `held` tokens.

    `key` is a secret that only this client receives.
    """

    ran_by: BatchedStage | None = None  # None if another process runs the session
    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    held: int = 0
    seq: int = -1  # number of the last step; -1 before the first
    reply: bytes = b""  # answer to the last step
    used: float = field(default_factory=time.monotonic)
    client: str = ""  # the client that last opened the session
    caches: SessionCache | None = None  # None before the first step and after an eviction
    evicted: bool = False

    @property
    def texts(self) -> BatchedStage:
        """Returns `ran_by`, which must not be None: this process must run the session."""
        assert self.ran_by, "this session runs elsewhere"
        return self.ran_by


class Sessions:
    """Manages up to `most` sessions with caches, on all stages of one device.

    Call the methods only in the device's thread. A stage is a range of blocks loaded on the device. Sessions that have
    been idle for `age` seconds are evicted. Caches are created when first needed. When a session has ended, the next
    session of the same stage reuses its caches without clearing them, because a session reads only rows that it has
    written.
    """

    def __init__(self, most: int, age: float) -> None:
        self.most, self.age = most, age
        self._free: list[tuple[BatchedStage, SessionCache]] = []
        self._made = 0
        self._live: OrderedDict[str, Session] = OrderedDict()  # sessions with caches, least recently used first
        self._joint: frozenset[str] = frozenset()  # keys of the sessions in the current joint pass
        self.evictions = 0

    @property
    def side_by_side(self) -> int:
        """Returns the maximum number of sessions in one forward pass."""
        return min(self.most, MAX_ROWS)

    def __len__(self) -> int:
        return len(self._live)

    @property
    def nbytes(self) -> int:
        """Returns the texture memory of all caches in bytes."""
        whose = [*(texts for texts, _ in self._free), *(session.texts for session in self._live.values())]
        return sum(texts.stage.session_bytes for texts in whose)

    def use(self, texts: BatchedStage) -> bool:
        """True if a session with caches runs on this stage."""
        return any(session.ran_by is texts for session in self._live.values())

    def find(self, key: str | None, texts: BatchedStage, client: str = "") -> Session:
        """Returns the session with this key on the stage `texts`, or a new session if there is none."""
        self._expire()
        found = self._live.get(key) if key else None
        session = found if found and found.ran_by is texts else Session(texts)
        session.client = client
        return session

    def step(self, session: Session, pos: int, x: Rows, ask: Ask | None) -> Answer:
        """Runs the rows `x` of a session; the first of them has position `pos`.

        Raises LapsedError if the session was evicted or lacks rows before `pos`, or if its stage was unloaded. Raises
        GlgptError for rows beyond the context (a step with guessed tokens always computes `ROWS` rows), and if there is
        not exactly one row more than guesses.
        """
        self._check(session, pos, len(x), ask)
        fed = StepInput(self._use(session), pos, x, ask)
        session.held = pos  # remains `pos` if the step fails
        answer = session.texts.answer(fed)
        session.held = fed.caches.held
        return answer

    def steps(self, steps: Sequence[tuple[Session, int, Rows, Ask | None]]) -> list[Answer | GlgptError]:
        """Runs one row of each of several sessions in one forward pass.

        Returns for each session its answer, or the error that `step` would raise.

        Each step is a session, a position, the row, and the request for tokens after the row. There may be at most
        `side_by_side` steps, all of different sessions of one stage.
        """
        found: list[Answer | GlgptError | None] = [self._refused(session, pos, ask) for session, pos, _, ask in steps]
        good = [i for i, error in enumerate(found) if error is None]
        self._joint = frozenset(steps[i][0].key for i in good)  # to get caches, none of them may evict another
        try:
            fed = [StepInput(self._use(steps[i][0]), *steps[i][1:]) for i in good]
        finally:
            self._joint = frozenset()
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
            raise GlgptError(f"rows {pos} to {pos + n - 1} exceed this server's context of {context} (--context)")
        if ask and ask.guesses and n != len(ask.guesses) + 1:
            raise GlgptError(
                f"{len(ask.guesses)} guesses do not match {n} rows; send a token's row and one row per guess"
            )
        if ask and ask.guesses and pos + ROWS > context:
            raise GlgptError(
                f"a step with guesses computes rows {pos} to {pos + ROWS - 1}, which exceed this server's context of "
                f"{context} (--context); send the step without guesses"
            )
        if session.evicted or not session.texts.open:
            message = (
                f"the session was evicted: it was idle for {self.age:.0f} s, more than {self.most} sessions were in "
                "use, or its range of blocks was unloaded; reconnect without a session and send the text again"
            )
            raise LapsedError(EVICTED, message)
        if pos > session.held:
            raise LapsedError(ORDER, f"a step starts at row {pos}, but the session holds {session.held} rows")

    def _use(self, session: Session) -> SessionCache:
        """Creates the session's caches if needed and returns them; marks the session as used."""
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
        """Frees the session's caches for reuse."""
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
        if self._made == self.most:  # all free caches are of other stages: releases the oldest
            self._release(*self._free.pop(0))
        caches = texts.caches()  # may raise GlgptError
        self._made += 1
        return caches

    def _superfluous(self, client: str) -> Session:
        """Returns the session to evict: the least recently used one of the client with the most sessions.

        If several clients have the most sessions, considers all their sessions. Counts the new session of `client` too.
        """
        counts = Counter([client, *(session.client for session in self._live.values())])
        evictable = self._evictable()
        most = max(counts[session.client] for session in evictable)
        return next(session for session in evictable if counts[session.client] == most)

    def _evictable(self) -> list[Session]:
        """Returns the sessions with caches, except those of the current joint forward pass."""
        return [session for key, session in self._live.items() if key not in self._joint]

    def _release(self, texts: BatchedStage, caches: SessionCache) -> None:
        self._made -= 1
        texts.release(caches)

    def _expire(self) -> None:
        """Evicts the sessions that have been idle for too long."""
        oldest = time.monotonic() - self.age
        for session in self._evictable():
            if session.used < oldest:
                self._evict(session)

    def _evict(self, session: Session) -> None:
        self.evictions += 1
        self.end(session)
        session.evicted, session.held, session.reply = True, 0, b""

    def drop(self, texts: BatchedStage) -> None:
        """Evicts the sessions of a stage, releases the stage's caches and closes the stage."""
        for session in list(self._live.values()):
            if session.texts is texts:
                self._evict(session)
        for whose, caches in self._free:
            if whose is texts:
                self._release(whose, caches)
        self._free = [(whose, caches) for whose, caches in self._free if whose is not texts]
        texts.close()
