"""A progress bar on stderr: only where a person watches, and only for what takes more than a second."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(label: str, unit: str = "it", delay: float = 1.0) -> Iterator[Callable[[int, int], None] | None]:
    """Gives a function to call with (done, total), or None where stderr is no terminal. Unit "B" counts in MB.

    The bar appears after `delay` seconds, until the first call the label alone; it goes when the block ends.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from tqdm import tqdm

    said = threading.Event()

    def say() -> None:
        said.set()
        print(f"{label}…", end="", file=sys.stderr, flush=True)

    def unsay() -> None:
        clock.cancel()
        clock.join()  # it may just be saying it
        if said.is_set():
            said.clear()
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    clock = threading.Timer(delay, say)
    clock.daemon = True
    clock.start()
    with tqdm(desc=label, unit=unit, unit_scale=unit == "B", delay=delay, leave=False, dynamic_ncols=True) as bar:

        def show(done: int, total: int) -> None:
            unsay()
            bar.total = total
            bar.update(done - bar.n)

        try:
            yield show
        finally:
            unsay()


class Phases:
    """A progress bar for each part of a long task, one after another; used as a context manager."""

    def __init__(self, unit: str = "it") -> None:
        self._unit = unit
        self._stack = contextlib.ExitStack()
        self._show: Callable[[int, int], None] | None = None

    def __enter__(self) -> Phases:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self, label: str) -> None:
        """Ends the bar before and begins one with this label."""
        self._stack.close()
        self._show = self._stack.enter_context(progress(label, self._unit))

    def show(self, done: int, total: int) -> None:
        """Advances the present bar."""
        if self._show:
            self._show(done, total)
