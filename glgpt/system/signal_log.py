"""Names the signals that end a command, and records the order in which they arrive.

Python handles pending signals in the order of their numbers, so it does not tell which signal was first.
"""

import os
import signal
from collections.abc import Container

# The signals that end a command, each with the word that the command prints; Windows has no SIGHUP
ENDINGS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
if hasattr(signal, "SIGHUP"):
    ENDINGS[signal.SIGHUP] = "terminal closed"

_reading = -1  # the reading end of a pipe to which Python writes the number of each signal as it arrives


def record() -> None:
    """Starts to record signals; call it in the main thread of a command.

    On Windows, which has no non-blocking pipes, the order stays unknown.
    """
    global _reading
    if os.name == "posix" and _reading < 0:
        _reading, writing = os.pipe()
        os.set_blocking(_reading, False)
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)


def first(number: int, among: Container[int]) -> int:
    """Returns the first signal of `among` that arrived since the last call; `number` if none was recorded."""
    try:
        arrived = os.read(_reading, 1 << 16)
    except OSError:  # not recording, or no signal
        return number
    return next((n for n in arrived if n in among), number)
