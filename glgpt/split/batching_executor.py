"""A single thread that runs jobs, some of them together, and shares its time fairly among clients."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")
J = TypeVar("J")
LINGER = 0.25  # of the last joint run: how long the next one waits for those who shared it
LONGEST = 0.02  # seconds, at most


@dataclass(eq=False)
class _Task(Generic[J]):
    """Work, or a job that may run with others of its kind; `whose` is its session, `client` who is charged for it."""

    work: Callable[[], Any] | None = None
    job: J | None = None
    whose: Hashable = None
    kind: Hashable = None
    client: Hashable = None
    urgent: bool = False
    done: Future[Any] = field(default_factory=Future)


class BatchingExecutor(Generic[J]):
    """A thread for what must all run in one. Of a client's jobs the one that came first runs first.

    Of several clients, the one that has used the least time runs next (start-time fair queueing, Goyal et al. 1996): a
    client that sends many long jobs delays the others by one of these, not by all. Urgent work comes before all else.

    When a job runs, others of its kind that wait run with it: up to `most()` of different owners, a client's second
    one after each client's first, by `together`, which gives a result or an exception for each. Those who shared the
    last run and are about to come again are waited for a moment, where nothing else waits: clients that were answered
    together come back together.
    """

    def __init__(self, name: str, together: Callable[[Sequence[J]], Sequence[Any]], most: Callable[[], int]) -> None:
        self._together, self._most = together, most
        self._queue: deque[_Task[J]] = deque()  # in the order in which they came
        self._change = threading.Condition()
        self._closed = False
        self._company: frozenset[Hashable] = frozenset()  # of the last run
        self._took = 0.0  # seconds, the last run
        self._used: dict[Hashable, float] = {}  # seconds by client, those of idle clients raised to `_floor`
        self._floor = 0.0  # what the client that ran last had used before
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, work: Callable[[], T], client: Hashable = None, urgent: bool = False) -> Future[T]:
        """Runs `work` when it is the client's turn; urgent work, which must be short, at once."""
        return self._add(_Task(work=work, client=client, urgent=urgent))

    async def run(self, work: Callable[[], T], client: Hashable = None, urgent: bool = False) -> T:
        """Awaits what `submit` gives."""
        return await asyncio.wrap_future(self.submit(work, client, urgent))

    async def join(self, job: J, whose: Hashable, kind: Hashable = None, client: Hashable = None) -> Any:
        """Runs a job, together with others of its kind and of other owners where there are any."""
        return await asyncio.wrap_future(self._add(_Task(job=job, whose=whose, kind=kind, client=client)))

    def close(self) -> None:
        """Ends the thread, after what waits."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    def _add(self, task: _Task[J]) -> Future[Any]:
        with self._change:
            if self._closed:
                raise RuntimeError("this thread has ended")
            if all(other.client != task.client for other in self._queue):
                self._used[task.client] = max(self._used.get(task.client, 0.0), self._floor)
            self._queue.append(task)
            self._change.notify_all()
        return task.done

    def _run(self) -> None:
        while tasks := self._next():
            tasks = [task for task in tasks if task.done.set_running_or_notify_cancel()]
            if not tasks:
                continue
            begun = time.perf_counter()
            if tasks[0].work:
                _settle(tasks[0].done, tasks[0].work)
            else:
                self._run_jobs(tasks)
            self._charge(tasks, time.perf_counter() - begun)

    def _run_jobs(self, tasks: Sequence[_Task[J]]) -> None:
        begun = time.perf_counter()
        try:
            results = self._together([task.job for task in tasks if task.job is not None])
            if len(results) != len(tasks):  # the thread would end, and all who wait would wait forever
                raise RuntimeError(f"{len(tasks)} jobs gave {len(results)} results")
        except BaseException as error:  # of the thread's loop: those who wait must receive it
            results = [error] * len(tasks)
        self._took = time.perf_counter() - begun
        self._company = frozenset(task.whose for task in tasks)
        for task, result in zip(tasks, results, strict=True):
            if isinstance(result, BaseException):
                task.done.set_exception(result)
            else:
                task.done.set_result(result)

    def _charge(self, tasks: Sequence[_Task[J]], seconds: float) -> None:
        """Adds a run's time to the clients that took part, in equal shares, and forgets clients that are idle."""
        with self._change:
            waiting = {task.client for task in self._queue}
            for task in tasks:
                self._used[task.client] = self._used.get(task.client, self._floor) + seconds / len(tasks)
            self._used = {c: used for c, used in self._used.items() if c in waiting or used > self._floor}

    def _next(self) -> list[_Task[J]]:
        """Returns what runs next: one piece of work, or jobs that run together; nothing once closed and all is done."""
        with self._change:
            self._change.wait_for(lambda: self._queue or self._closed)
            if not self._queue:
                return []
            first = min(self._queue, key=lambda task: (not task.urgent, self._used[task.client]))
            self._queue.remove(first)
            if not first.urgent:
                self._floor = max(self._floor, self._used[first.client])
            if first.job is None:
                return [first]
            if len(self._company) > 1 or first.whose not in self._company:
                end = time.perf_counter() + min(LONGEST, LINGER * self._took)
                while (left := end - time.perf_counter()) > 0 and self._expects(first):
                    self._change.wait(left)
            chosen = {first.whose: first}
            for task in self._in_rounds(first):
                if len(chosen) < self._most():
                    chosen.setdefault(task.whose, task)
            self._queue = deque(task for task in self._queue if chosen.get(task.whose) is not task)
            return list(chosen.values())

    def _in_rounds(self, first: _Task[J]) -> list[_Task[J]]:
        """The jobs of the same kind: one of each client, then a second one of each, and so on."""
        rounds: dict[Hashable, int] = defaultdict(int, {first.client: 1})
        found = []
        for task in self._queue:
            if task.job is not None and task.kind == first.kind:
                found.append((rounds[task.client], task))
                rounds[task.client] += 1
        return [task for _, task in sorted(found, key=lambda each: each[0])]

    def _expects(self, first: _Task[J]) -> bool:
        """True if a session of the last run may be about to come, and nothing else waits."""
        if self._closed or any(task.job is None or task.kind != first.kind for task in self._queue):
            return False
        here = {first.whose, *(task.whose for task in self._queue)}
        return len(here) < self._most() and not self._company <= here


def _settle(done: Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except BaseException as error:  # it is the caller's, who waits in another thread
        done.set_exception(error)
    else:
        done.set_result(result)
