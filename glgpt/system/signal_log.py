"""In which order signals came: Python runs the handlers of two that wait by their numbers."""

import os
import signal
from collections.abc import Container

_reading = -1  # the end of a pipe into which Python writes the number of each signal, when it comes


def record() -> None:
    """Notes signals from now on. For the main thread of a command, which owns the process; where there are no pipes
    that never wait (Windows), their order stays unknown.
    """
    global _reading
    if os.name == "posix" and _reading < 0:
        _reading, writing = os.pipe()
        os.set_blocking(_reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)


def first(number: int, among: Container[int]) -> int:
    """Of the signals that came since this was last asked, the first one `among` those; `number` where none is known."""
    try:
        came = os.read(_reading, 1 << 16)
    except OSError:  # nothing is noted, or nothing came
        return number
    return next((n for n in came if n in among), number)
