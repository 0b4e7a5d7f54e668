"""SIGINT and SIGTERM: as exceptions that cannot be lost, or in other hands for a while."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from glgpt.system.signal_log import first

NUMBERS = (signal.SIGINT, signal.SIGTERM)
AGAIN = 0.2  # seconds after which it is seen to that an exception was not swallowed
PATIENCE = 2.0  # seconds that undoing what is half done may take before another signal ends the process


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what is half done is undone on the way out, as it is for Ctrl-C."""


class Unwinding:
    """Turns the first signal into an exception, and raises it again wherever it was swallowed.

    Python drops an exception that a destructor, a callback from C, or some extensions' code is hit by. A thread
    therefore signals again until the `with` block has ended; the handler raises unless the exception is on its way.
    While a module is imported it waits: an exception half way leaves extensions in a state that aborts the process.
    A second signal from outside is ignored while things are undone, and after `PATIENCE` ends the process by `leave`.
    """

    def __init__(self, leave: Callable[[int], object] | None = None) -> None:
        self.leave = leave
        self.number = 0  # the signal that came first
        self._since = 0.0
        self._poked = False  # by our own thread
        self._ended = threading.Event()
        self._main = threading.main_thread().ident or 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if begun := not self.number:
            self.number, self._since = first(number, NUMBERS), time.monotonic()
            threading.Thread(target=self._watch, daemon=True).start()
        poked, self._poked = self._poked, False
        if self._ended.is_set() or importing(frame):
            return
        if begun or not self._on_its_way():
            raise self._error()
        if not poked and self.leave and time.monotonic() - self._since > PATIENCE:
            self.leave(self.number)

    def end(self) -> None:
        """The exception arrived, or none came."""
        self._ended.set()

    def _error(self) -> KeyboardInterrupt:
        return Terminated() if self.number == signal.SIGTERM else KeyboardInterrupt()

    def _watch(self) -> None:
        while not self._ended.wait(AGAIN):
            self._poked = True
            if hasattr(signal, "pthread_kill"):
                signal.pthread_kill(self._main, self.number)
            else:
                signal.raise_signal(self.number)

    @staticmethod
    def _on_its_way() -> bool:
        """Whether the code that was interrupted runs while a KeyboardInterrupt is being handled."""
        error = sys.exc_info()[1]
        while error is not None and not isinstance(error, KeyboardInterrupt):
            error = error.__context__
        return error is not None


def importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported, by what runs in a frame or called it."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


@contextlib.contextmanager
def unwinding(leave: Callable[[int], object] | None = None) -> Iterator[None]:
    """Has SIGINT and SIGTERM raise KeyboardInterrupt and its subclass Terminated, but where they are ignored.

    Does nothing outside the main thread, from where alone Python sets handlers.
    """
    state = Unwinding(leave)
    with handled(state.handle, default=True):
        try:
            yield
        finally:
            state.end()


@contextlib.contextmanager
def handled(note: Callable[[int, Any], None], *, default: bool) -> Iterator[None]:
    """Has SIGINT and SIGTERM call `note`, but where they are ignored; where they end the process, if `default`.

    Does nothing outside the main thread, from where alone Python sets handlers.
    """
    here = threading.current_thread() is threading.main_thread()
    before = {s: signal.getsignal(s) for s in NUMBERS if here}
    own = {s: h for s, h in before.items() if callable(h) or (default and h == signal.SIG_DFL)}
    with contextlib.ExitStack() as stack:  # which restores all handlers, even where a signal comes in between
        for number, handler in own.items():
            stack.callback(signal.signal, number, handler)
            signal.signal(number, note)
        yield
