"""The command line `glgpt`: `main` parses arguments, runs a subcommand and returns the exit code.

Exit code 0 means success, and 2 means bad input. Exit code 1 means that a comparison exceeded its tolerance, an op of
the self-test failed, or a training diverged. Only this package and the processes of a federation parse arguments,
draw progress bars and print errors. The package may import all other packages, and none of these imports it.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from glgpt.errors import GlgptError, quoted
from glgpt.system.files import named_errors
from glgpt.system.signal_log import ENDINGS
from glgpt.system.signals import Terminated, unwinding

BROKEN_PIPE = 141  # exit code of a program that SIGPIPE ended, as a shell reports it
MAX_ERROR_CHARACTERS = 1000


def main(argv: Sequence[str] | None = None, leave: Callable[[int], object] | None = None) -> int:
    """Runs one command line and returns its exit code.

    `leave(number)` ends the process with the exit code for the signal `number`. It is called after the clean-up that
    follows a signal, or when another signal arrives after two seconds of clean-up.
    """
    try:
        _ready_streams()
        from glgpt.cli.operation.log import log_on_stderr  # in `try`: an interrupt may arrive during the import
        from glgpt.cli.parser import build_parser

        words = sys.argv[1:] if argv is None else argv
        args = build_parser(words[0] if words else None).parse_args(words)
        with unwinding(leave), log_on_stderr():
            code: int = args.run(args)
            with named_errors(Path("stdout")):
                sys.stdout.flush()
    except GlgptError as error:
        return _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter's last flush must not fail too
        return BROKEN_PIPE
    except OSError as error:
        return _fail(f"{quoted(error.filename)}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt as error:
        return _stopped(error, leave)
    return code


def _stopped(error: KeyboardInterrupt, leave: Callable[[int], object] | None) -> int:
    """Calls `leave` if given; otherwise prints which signal ended the command.

    Returns the exit code of a program that the signal ended, as a shell reports it: 128 more than the signal's number.
    """
    number = error.number if isinstance(error, Terminated) else signal.SIGINT
    traceback.clear_frames(error.__traceback__)  # cleans up for `with` statements that were interrupted in `__enter__`
    if leave:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        leave(number)
    with contextlib.suppress(OSError):
        print(f"glgpt: {ENDINGS[number]}", file=sys.stderr, flush=True)
    return 128 + number


def _ready_streams() -> None:
    """Sets stdout and stderr to UTF-8 and replaces closed streams with the null device."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115, open until the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def _fail(message: str) -> int:
    with contextlib.suppress(OSError):  # a full or closed stderr does not change the exit code
        print(f"glgpt: error: {quoted(message, MAX_ERROR_CHARACTERS)}", file=sys.stderr, flush=True)
    return 2
