"""The command `glgpt`, also as `python -m glgpt`: signals are in hand before anything else is imported."""

import os
import signal
import sys

from glgpt.system.signal_log import first, record

LINES: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_leaving = False


def leave(number: int, _frame: object = None) -> None:
    """Says in one line which signal came first, and ends the process with what a shell reports for it: 130 or 143.

    The handler while the command starts, when nothing is half done: an exception instead could be swallowed by what
    is being imported, or come out of it as something else.
    """
    global _leaving
    if _leaving:
        return
    _leaving = True
    number = first(number, LINES)
    try:
        clear = "\r\x1b[K" if os.isatty(2) else ""  # of the terminal's ^C
        os.write(2, f"{clear}glgpt: {LINES[number]}\n".encode())
    except OSError:  # a closed stderr changes nothing of the exit code
        pass
    os._exit(128 + number)


def entry() -> int:
    """Runs the command line of this process and returns its exit code; from here on, signals change nothing."""
    for number in LINES:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, leave)
    record()
    try:
        from glgpt.cli import main

        return main(leave=leave)
    finally:
        for number in LINES:
            if signal.getsignal(number) is leave:
                signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    sys.exit(entry())
