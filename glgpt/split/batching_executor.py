"""A single-threaded executor that batches compatible jobs and shares its time fairly among clients."""

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
# Before it starts a batch, the executor waits for jobs of the previous batch's sessions: at most this share of the time
# that the previous batch took, and at most 20 ms.
LINGER_SHARE = 0.25
MAX_LINGER_S = 0.02


@dataclass(eq=False)
class _Task(Generic[J]):
    """A queued function `work`, or a queued `job` of the session `whose`.

    A job can be batched with jobs of other sessions that have the same `kind`.
    """

    work: Callable[[], Any] | None = None
    job: J | None = None
    whose: Hashable = None
    kind: Hashable = None
    client: Hashable = None
    urgent: bool = False
    done: Future[Any] = field(default_factory=Future)


class BatchingExecutor(Generic[J]):
    """A single-threaded executor that batches compatible jobs and shares its time fairly among clients.

    A client's jobs run in the order in which they were submitted, with one exception: a job that fits into a batch may
    overtake earlier jobs of its client that do not fit. If several clients have jobs, a job of the client that has used
    the least time runs next (start-time fair queueing, Goyal et al. 1996). So a client that submits many long jobs
    delays other clients by one of these jobs, not by all. Urgent work runs before everything else.

    A job runs in a batch with waiting jobs of the same kind: up to `most()` jobs of different sessions. One job of each
    client is chosen before a second job of any client. `together` runs the batch and returns a result or an exception
    for each job. Before a batch, the executor waits briefly for jobs of the previous batch's other sessions, so that
    these sessions can be batched again; it does not wait if work that cannot join the batch is queued.
    """

    def __init__(self, name: str, together: Callable[[Sequence[J]], Sequence[Any]], most: Callable[[], int]) -> None:
        self._together, self._most = together, most
        self._queue: deque[_Task[J]] = deque()  # in order of arrival
        self._change = threading.Condition()
        self._closed = False
        self._company: frozenset[Hashable] = frozenset()  # the sessions of the last batch
        self._took = 0.0  # seconds that the last batch took
        # Seconds used, by client. If a client without queued jobs submits one, its seconds become at least `_floor`, so
        # that a new or idle client does not run ahead of all others.
        self._used: dict[Hashable, float] = {}
        self._floor = 0.0  # the largest `_used` that any client had when a job of that client started
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._queue)

    def submit(self, work: Callable[[], T], client: Hashable = None, urgent: bool = False) -> Future[T]:
        """Queues `work` for a client. Urgent work, which must be short, runs next."""
        return self._add(_Task(work=work, client=client, urgent=urgent))

    async def run(self, work: Callable[[], T], client: Hashable = None, urgent: bool = False) -> T:
        """Submits work and awaits its result."""
        return await asyncio.wrap_future(self.submit(work, client, urgent))

    async def join(self, job: J, whose: Hashable, kind: Hashable = None, client: Hashable = None) -> Any:
        """Runs a job, batched with waiting jobs of its kind from other sessions, and awaits its result."""
        return await asyncio.wrap_future(self._add(_Task(job=job, whose=whose, kind=kind, client=client)))

    def close(self) -> None:
        """Runs the queued jobs and ends the thread."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        self._thread.join()

    def _add(self, task: _Task[J]) -> Future[Any]:
        with self._change:
            if self._closed:
                raise RuntimeError("this executor is closed")
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
            if len(results) != len(tasks):  # the `zip` below would end the thread, and all callers would wait forever
                raise RuntimeError(f"{len(tasks)} jobs gave {len(results)} results")
        except BaseException as error:  # the callers must receive the error, and the thread must continue
            results = [error] * len(tasks)
        self._took = time.perf_counter() - begun
        self._company = frozenset(task.whose for task in tasks)
        for task, result in zip(tasks, results, strict=True):
            if isinstance(result, BaseException):
                task.done.set_exception(result)
            else:
                task.done.set_result(result)

    def _charge(self, tasks: Sequence[_Task[J]], seconds: float) -> None:
        """Charges the client of each task for an equal share of the time.

        Removes the seconds of clients that have nothing queued and have not used more than `_floor`: a later job of
        such a client starts with `_floor` seconds anyway.
        """
        with self._change:
            waiting = {task.client for task in self._queue}
            for task in tasks:
                self._used[task.client] = self._used.get(task.client, self._floor) + seconds / len(tasks)
            self._used = {c: used for c, used in self._used.items() if c in waiting or used > self._floor}

    def _next(self) -> list[_Task[J]]:
        """Waits for tasks. Returns a single function or a batch of jobs, or [] if the queue is closed and empty."""
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
                end = time.perf_counter() + min(MAX_LINGER_S, LINGER_SHARE * self._took)
                while (left := end - time.perf_counter()) > 0 and self._expects(first):
                    self._change.wait(left)
            chosen = {first.whose: first}
            for task in self._in_rounds(first):
                if len(chosen) < self._most():
                    chosen.setdefault(task.whose, task)
            self._queue = deque(task for task in self._queue if chosen.get(task.whose) is not task)
            return list(chosen.values())

    def _in_rounds(self, first: _Task[J]) -> list[_Task[J]]:
        """Returns the queued jobs that may run with `first`: one of each client, then a second one of each, and so on.

        `first` counts as the first job of its client.
        """
        rounds: dict[Hashable, int] = defaultdict(int, {first.client: 1})
        found = []
        for task in self._queue:
            if task.job is not None and task.kind == first.kind:
                found.append((rounds[task.client], task))
                rounds[task.client] += 1
        return [task for _, task in sorted(found, key=lambda each: each[0])]

    def _expects(self, first: _Task[J]) -> bool:
        """True if a session of the last batch can still join the batch of `first`, and no incompatible task waits."""
        if self._closed or any(task.job is None or task.kind != first.kind for task in self._queue):
            return False
        here = {first.whose, *(task.whose for task in self._queue)}
        return len(here) < self._most() and not self._company <= here


def _settle(done: Future[Any], work: Callable[[], Any]) -> None:
    try:
        result = work()
    except BaseException as error:  # pass it to the caller, which waits in another thread
        done.set_exception(error)
    else:
        done.set_result(result)
