"""Shows progress bars on a terminal, only for tasks that take more than a second; turns off a terminal's echo."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any

termios: Any
try:
    import termios
except ImportError:  # Windows
    termios = None

DELAY_S = 1.0  # seconds before a label appears
FALLBACK_SIZE = (80, 24)  # columns and rows of a terminal that does not report its size


@contextlib.contextmanager
def progress(label: str, unit: str = "it", delay: float | None = None) -> Iterator[Callable[[int, int], None] | None]:
    """Yields a function to call with (done, total), or None if stderr is not a terminal. Shows unit "B" as kB, MB, ….

    The label appears after `delay` seconds (default: DELAY_S). When the function is first called, a bar with the same
    label replaces the label, or appears after `delay` seconds if the label has not appeared. The label or the bar
    vanishes when the block ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    delay = DELAY_S if delay is None else delay
    said = threading.Event()

    def say() -> None:
        said.set()
        print(f"{label}…", end="", file=sys.stderr, flush=True)

    def unsay() -> None:
        clock.cancel()
        clock.join()  # the timer may be printing the label
        if said.is_set():
            said.clear()
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    clock = threading.Timer(delay, say)
    clock.daemon = True
    clock.start()
    options: dict[str, Any] = {"desc": label, "unit": unit, "unit_scale": unit == "B", "delay": delay, "leave": False}
    with tqdm(**options, **_size()) as bar:

        def show(done: int, total: int) -> None:
            unsay()
            bar.total = total
            bar.update(done - bar.n)

        try:
            yield show
        finally:
            unsay()


def _size() -> dict[str, Any]:
    """Returns the options of tqdm for the size of the terminal.

    A terminal without a window, such as that of `script` or of CI, may report 0 columns, with which tqdm shows no bar.
    """
    try:
        known = all(os.get_terminal_size(sys.stderr.fileno()))
    except (OSError, ValueError):
        known = False
    return {"dynamic_ncols": True} if known else {"ncols": FALLBACK_SIZE[0] - 1, "nrows": FALLBACK_SIZE[1]}


def awaited(label: str, pieces: Iterator[str]) -> Iterator[str]:
    """Yields pieces of text; shows the label, as `progress` does, until the first piece arrives."""
    with progress(label):
        first = list(itertools.islice(pieces, 1))
    yield from itertools.chain(first, pieces)


class Phases:
    """A context manager that shows one progress bar for each part of a long task, one after another.

    If stderr is not a terminal, it prints a line for each part instead.
    """

    def __init__(self, unit: str = "it") -> None:
        self._unit = unit
        self._stack = contextlib.ExitStack()
        self._show: Callable[[int, int], None] | None = None

    def __enter__(self) -> Phases:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self, label: str) -> None:
        """Ends the previous bar and begins one with this label."""
        self._stack.close()
        if not sys.stderr.isatty():
            print(f"{label}…", file=sys.stderr, flush=True)
        self._show = self._stack.enter_context(progress(label, self._unit))

    def show(self, done: int, total: int) -> None:
        """Advances the current bar."""
        if self._show:
            self._show(done, total)


@contextlib.contextmanager
def no_echo(stream: IO[str]) -> Iterator[None]:
    """Turns off the terminal's echo inside the block, so that typed characters such as ^C do not appear in the output.

    A prompt after the block still receives what was typed.
    """
    if termios is None:
        yield
        return
    try:
        terminal = stream.fileno()
        before = termios.tcgetattr(terminal)
        ours = os.tcgetpgrp(terminal) == os.getpgrp()  # the system stops a background process that changes a terminal
    except (OSError, ValueError, termios.error):
        ours = False
    if not ours:
        yield
        return
    termios.tcsetattr(terminal, termios.TCSANOW, [*before[:3], before[3] & ~termios.ECHO, *before[4:]])
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal may have been closed
            termios.tcsetattr(terminal, termios.TCSANOW, before)
