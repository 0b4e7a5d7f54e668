"""Runs the command `glgpt`, also as `python -m glgpt`. Installs signal handlers before it imports `glgpt.cli`."""

import os
import signal
import sys

from glgpt.system.signal_log import ENDINGS, first, record

_leaving = False


def leave(number: int, _frame: object = None) -> None:
    """Prints which signal came first, and ends the process with the exit code that a shell reports: 129, 130 or 143.

    This is the signal handler while the command starts, when there is nothing to clean up. It raises no exception,
    because a module that is being imported could swallow or replace an exception.
    """
    global _leaving
    if _leaving:
        return
    _leaving = True
    number = first(number, ENDINGS)
    try:
        clear = "\r\x1b[K" if os.isatty(2) else ""  # erases the terminal's ^C
        os.write(2, f"{clear}glgpt: {ENDINGS[number]}\n".encode())
    except OSError:  # a closed stderr does not change the exit code
        pass
    os._exit(128 + number)


def entry() -> int:
    """Runs the command line of this process and returns the exit code.

    Afterwards, the signals that `leave` handles are ignored.
    """
    for number in ENDINGS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, leave)
    record()
    try:
        from glgpt.cli import main

        return main(leave=leave)
    finally:
        for number in ENDINGS:
            if signal.getsignal(number) is leave:
                signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(entry())
