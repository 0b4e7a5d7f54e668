"""A thread that does what it is given in the order in which that came, some of it together."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
J = TypeVar("J")
LINGER = 0.25  # of the last joint run: how long the next one waits for those who shared it
LONGEST = 0.02  # seconds, at most


@dataclass(eq=False)
class _Turn(Generic[J]):
    """Something to do, or a job to run beside others of its kind; `whose` is who takes part."""

    work: Callable[[], Any] | None = None
    job: J | None = None
    whose: Hashable = None
    kind: Hashable = None
    done: Future[Any] = field(default_factory=Future)


class Turns(Generic[J]):
    """A thread for what must all run in one. What comes first runs first.

    When the turn of a job comes, others of its kind that wait run with it: up to `most()` of different owners, by
    `together`, which gives a result or an exception for each. Those who shared the last run and are about to come again
    are waited for a moment, where nothing else waits: clients that were answered together come back together.
    """

    def __init__(self, name: str, together: Callable[[Sequence[J]], Sequence[Any]], most: Callable[[], int]) -> None:
        self._together, self._most = together, most
        self._queue: deque[_Turn[J]] = deque()
        self._change = threading.Condition()
        self._closed = False
        self._company: frozenset[Hashable] = frozenset()  # of the last run
        self._took = 0.0  # seconds, the last run
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Runs `work` after what waits."""
        return self._add(_Turn(work=work))

    async def run(self, work: Callable[[], T]) -> T:
        """Runs `work` after what waits."""
        return await asyncio.wrap_future(self.submit(work))

    async def join(self, job: J, whose: Hashable, kind: Hashable = None) -> Any:
        """Runs a job, beside others of its kind and of other owners where there are any."""
        return await asyncio.wrap_future(self._add(_Turn(job=job, whose=whose, kind=kind)))

    def close(self) -> None:
        """Ends the thread, after what waits."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    def _add(self, turn: _Turn[J]) -> Future[Any]:
        with self._change:
            if self._closed:
                raise RuntimeError("this thread has ended")
            self._queue.append(turn)
            self._change.notify_all()
        return turn.done

    def _run(self) -> None:
        while turns := self._next():
            turns = [turn for turn in turns if turn.done.set_running_or_notify_cancel()]
            if not turns:
                continue
            if turns[0].work:
                _settle(turns[0].done, turns[0].work)
                continue
            begun = time.perf_counter()
            try:
                results = self._together([turn.job for turn in turns if turn.job is not None])
                if len(results) != len(turns):  # the thread would end, and everyone who waits would wait for ever
                    raise RuntimeError(f"{len(turns)} jobs gave {len(results)} results")
            except BaseException as error:  # of the thread's loop: whoever waits must hear of it
                results = [error] * len(turns)
            self._took = time.perf_counter() - begun
            self._company = frozenset(turn.whose for turn in turns)
            for turn, result in zip(turns, results, strict=True):
                if isinstance(result, BaseException):
                    turn.done.set_exception(result)
                else:
                    turn.done.set_result(result)

    def _next(self) -> list[_Turn[J]]:
        """What runs next: one thing, or jobs that run together; nothing once it is closed and all is done."""
        with self._change:
            self._change.wait_for(lambda: self._queue or self._closed)
            if not self._queue:
                return []
            first = self._queue.popleft()
            if first.job is None:
                return [first]
            if len(self._company) > 1 or first.whose not in self._company:
                end = time.perf_counter() + min(LONGEST, LINGER * self._took)
                while (left := end - time.perf_counter()) > 0 and self._expects(first):
                    self._change.wait(left)
            chosen = {first.whose: first}
            for turn in self._queue:
                if turn.job is not None and turn.kind == first.kind and len(chosen) < self._most():
                    chosen.setdefault(turn.whose, turn)
            self._queue = deque(turn for turn in self._queue if chosen.get(turn.whose) is not turn)
            return list(chosen.values())

    def _expects(self, first: _Turn[J]) -> bool:
        """Whether somebody of the last run may be about to come, and nothing else waits for its turn."""
        if self._closed or any(turn.job is None or turn.kind != first.kind for turn in self._queue):
            return False
        here = {first.whose, *(turn.whose for turn in self._queue)}
        return len(here) < self._most() and not self._company <= here


def _settle(done: Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except BaseException as error:  # it is the caller's, who waits in another thread
        done.set_exception(error)
    else:
        done.set_result(result)
