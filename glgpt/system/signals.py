"""SIGINT and SIGTERM in other hands for a while."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def handled(note: Callable[[int, Any], None], *, default: bool) -> Iterator[None]:
    """Has SIGINT and SIGTERM call `note`, but where they are ignored; where they end the process, if `default`.

    Does nothing outside the main thread, from where alone Python sets handlers.
    """
    here = threading.current_thread() is threading.main_thread()
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM) if here}
    own = {s: h for s, h in before.items() if callable(h) or (default and h == signal.SIG_DFL)}
    for number in own:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in own.items():
            signal.signal(number, handler)
