"""Calls a function for many arguments in several processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TypeVar

from glgpt.errors import GlgptError
from glgpt.system.memory import available_memory
from glgpt.system.processors import available_processors

MAX_PROCESSES = 16  # further processes save little time, and each needs memory

A = TypeVar("A")
R = TypeVar("R")


def processes_for(count: int, memory: int) -> int:
    """Returns how many processes should share `count` calls, if a process needs `memory` bytes."""
    free = available_memory()
    most = MAX_PROCESSES if free is None else min(MAX_PROCESSES, free // (2 * memory))
    return max(1, min(count, available_processors(), most))


def in_processes(function: Callable[[A], R], arguments: Sequence[A], processes: int) -> Iterator[tuple[int, R]]:
    """Yields (index of the argument, result) of each call, in the order in which the calls end.

    With one process, and on systems that do not support more, calls the function in this process. The function must be
    defined at the top level of a module, and arguments and results must be picklable. After an error or an interrupt,
    ends the other processes. Raises GlgptError if the system ends a process, for example because memory does not
    suffice.
    """
    context = _Context()
    pool = _pool(processes, context) if processes > 1 else None
    if pool is None:
        yield from ((i, function(argument)) for i, argument in enumerate(arguments))
        return
    try:
        with _blocked():
            waiting = {pool.submit(function, argument): i for i, argument in enumerate(arguments)}
        while waiting:
            done: set[Future[R]] = wait(waiting, return_when=FIRST_COMPLETED).done
            for future in done:
                yield waiting.pop(future), future.result()
    except BaseException as error:
        for process in context.created:
            if process.pid:
                process.terminate()
        if isinstance(error, BrokenProcessPool):
            raise GlgptError(
                "a process was ended from outside, perhaps for lack of memory: free some, or use fewer processors "
                "(taskset); a script that starts processes needs `if __name__ == '__main__':`"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


class _Context(SpawnContext):
    """Creates the processes of a pool, and lists them. Forked processes would copy locks that other threads hold."""

    def __init__(self) -> None:
        super().__init__()
        self.created: list[SpawnProcess] = []

    def Process(self, *args: Any, **options: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        """Returns a new process, which the pool starts."""
        self.created.append(SpawnProcess(*args, **options))
        return self.created[-1]


def _pool(processes: int, context: _Context) -> ProcessPoolExecutor | None:
    """Returns a pool of processes; None if the system cannot provide one, for example without semaphores."""
    try:
        return ProcessPoolExecutor(processes, context, _end_with_parent)
    except (OSError, ImportError, NotImplementedError):
        return None


def _end_with_parent() -> None:
    """Ends this process when its parent has ended; otherwise this process would wait for calls for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Blocks SIGINT in processes that are started in this block: Ctrl-C reaches this process, which ends the others."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
