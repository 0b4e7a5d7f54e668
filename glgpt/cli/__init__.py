"""The command `glgpt`: arguments in, exit code out. 0 is success, 1 a comparison that failed, 2 bad input."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from glgpt.errors import GlgptError

INTERRUPTED, BROKEN_PIPE = 130, 141  # what a shell reports for a program ended by SIGINT, SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    try:
        _ready_streams()
        from glgpt.cli.parser import build_parser  # here, since an interrupt may come while it loads

        args = build_parser().parse_args(argv)
        code: int = args.run(args)
        sys.stdout.flush()
    except GlgptError as error:
        return _fail(str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter's last flush must not fail too
        return BROKEN_PIPE
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
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
    print(f"glgpt: error: {message}", file=sys.stderr)
    return 2
