"""The command `glgpt`: arguments in, exit code out. 0 is success, 1 a comparison that failed, 2 bad input.

It knows arguments, progress and error text; nothing else knows them.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from glgpt.errors import GlgptError, quoted
from glgpt.system.files import named_errors
from glgpt.system.signals import Terminated, unwinding

# What a shell reports for a program ended by SIGINT, SIGPIPE, SIGTERM
INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143
LONGEST = 1000  # characters of an error


def main(argv: Sequence[str] | None = None, leave: Callable[[int], object] | None = None) -> int:
    """Runs one command line and returns its exit code.

    `leave` ends the process at once, with the exit code of a signal: for one that comes again while the first is
    being heeded.
    """
    try:
        _ready_streams()
        from glgpt.cli.operation.log import log_on_stderr  # here, since an interrupt may come while it loads
        from glgpt.cli.parser import build_parser

        args = build_parser().parse_args(argv)
        if getattr(args, "hint", None):
            print(f"glgpt: hint: {args.hint}", file=sys.stderr)
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
    except Terminated:
        return _stopped(TERMINATED, "terminated", leave)
    except KeyboardInterrupt:
        return _stopped(INTERRUPTED, "interrupted", leave)
    return code


def _stopped(code: int, how: str, leave: Callable[[int], object] | None) -> int:
    """Says in one line which signal ended the command, where `leave` does not."""
    if leave:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        leave(code - 128)
    with contextlib.suppress(OSError):
        print(f"glgpt: {how}", file=sys.stderr, flush=True)
    return code


def _ready_streams() -> None:
    """Output in UTF-8; what the caller closed goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115, open to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def _fail(message: str) -> int:
    with contextlib.suppress(OSError):  # a full or closed stderr changes nothing of the exit code
        print(f"glgpt: error: {quoted(message, LONGEST)}", file=sys.stderr, flush=True)
    return 2
