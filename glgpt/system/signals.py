"""Handles SIGINT, SIGTERM and SIGHUP.

`unwinding` turns them into exceptions, `handled` makes them call a function, and `deferred` delivers them later.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from glgpt.system.signal_log import ENDINGS, first

NUMBERS = tuple(ENDINGS)
CHECK_INTERVAL_S = 0.2  # seconds between repeated signals, in case the exception was swallowed
CLEANUP_TIMEOUT_S = 2.0  # seconds after the first signal in which further signals are ignored


class Terminated(KeyboardInterrupt):
    """Raised for SIGTERM and SIGHUP, so that `with` and `finally` blocks clean up as for Ctrl-C."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.number = number


class Unwinding:
    """Turns the first signal into an exception, and raises the exception again if it was swallowed.

    Python drops an exception that is raised in a destructor, a callback from C, or some extensions' code. A thread
    therefore sends the signal again until the block of `unwinding` has ended. Each time, the handler raises the
    exception, unless the exception is already being handled. During an import, the handler raises nothing, because an
    exception during an import leaves extensions in a state that aborts the process. Further signals from outside are
    ignored for `CLEANUP_TIMEOUT_S` seconds after the first signal. After that, such a signal calls `leave`, which ends
    the process.
    """

    def __init__(self, leave: Callable[[int], object] | None = None) -> None:
        self.leave = leave
        self.number = 0  # the signal that came first
        self._since = 0.0
        self._poked = False  # True if the next signal is from `_watch`
        self._ended = threading.Event()
        self._main = threading.main_thread().ident or 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal."""
        if begun := not self.number:
            self.number, self._since = first(number, NUMBERS), time.monotonic()
            threading.Thread(target=self._watch, daemon=True).start()
        poked, self._poked = self._poked, False
        if self._ended.is_set() or importing(frame):
            return
        if begun or not self._on_its_way():
            raise self._error()
        if not poked and self.leave and time.monotonic() - self._since > CLEANUP_TIMEOUT_S:
            self.leave(self.number)

    def end(self) -> None:
        """Stops sending the signal again: the exception has arrived, or there was none."""
        self._ended.set()

    def _error(self) -> KeyboardInterrupt:
        return KeyboardInterrupt() if self.number == signal.SIGINT else Terminated(self.number)

    def _watch(self) -> None:
        while not self._ended.wait(CHECK_INTERVAL_S):
            self._poked = True
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(self._main, self.number)
            else:
                signal.raise_signal(self.number)

    @staticmethod
    def _on_its_way() -> bool:
        """True if the interrupted code was handling a KeyboardInterrupt."""
        error = sys.exc_info()[1]
        while error is not None and not isinstance(error, KeyboardInterrupt):
            error = error.__context__
        return error is not None


def importing(frame: FrameType | None) -> bool:
    """True if a frame, or one of its callers, is importing a module."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def unwinding(leave: Callable[[int], object] | None = None) -> Iterator[None]:
    """Makes SIGINT raise KeyboardInterrupt, and SIGTERM and SIGHUP raise Terminated, unless the signal is ignored.

    Does nothing outside the main thread: Python sets handlers only there.
    """
    state = Unwinding(leave)
    with handled(state.handle, default=True):
        try:
            yield
        finally:
            state.end()


@contextlib.contextmanager
def handled(note: Callable[[int, Any], None], *, default: bool) -> Iterator[None]:
    """Makes SIGINT, SIGTERM and SIGHUP call `note` inside the block, unless the signal is ignored.

    A signal with the default action, which ends the process, calls `note` only if `default` is True. Does nothing
    outside the main thread: Python sets handlers only there.
    """
    here = threading.current_thread() is threading.main_thread()
    before = {s: signal.getsignal(s) for s in NUMBERS if here}

    def on_signal(number: int, frame: Any) -> None:
        if number not in (signal.SIGINT, signal.SIGTERM):
            _leave_closed_terminal()
        note(number, frame)

    own = {s: h for s, h in before.items() if callable(h) or (default and h == signal.SIG_DFL)}
    with contextlib.ExitStack() as stack:  # restores all handlers, even if a signal arrives in between
        for number, handler in own.items():
            stack.callback(signal.signal, number, handler)
            signal.signal(number, on_signal)
        yield


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Delivers signals with a handler that arrive inside the block only after the block."""
    received: list[int] = []
    try:
        with handled(lambda number, _: received.append(number), default=False):
            yield
    finally:
        for number in received:
            signal.raise_signal(number)


def _leave_closed_terminal() -> None:
    """Redirects output to the null device if its terminal is closed: a write would fail, and end the clean-up."""
    for output in (1, 2):
        with contextlib.suppress(OSError):  # the output itself may be closed
            if stat.S_ISCHR(os.fstat(output).st_mode) and not os.isatty(output):
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, output)
                os.close(null)
