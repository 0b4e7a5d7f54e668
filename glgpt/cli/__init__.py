"""The command `glgpt`: arguments in, exit code out. 0 is success, 1 a comparison that failed, 2 bad input."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glgpt.errors import GlgptError

# What a shell reports for a program ended by SIGINT, SIGPIPE, SIGTERM
INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    before = _clean_up_when_terminated()
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
    except _TerminatedError:
        return TERMINATED
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    return code


class _TerminatedError(BaseException):
    """SIGTERM came: what is half done is undone on the way out, as it is for Ctrl-C."""


def _clean_up_when_terminated() -> Any:
    """Turns SIGTERM into an exception; returns the handler there was, None where there is nothing to turn."""

    def end(*_: object) -> None:
        raise _TerminatedError

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return None
    return signal.signal(signal.SIGTERM, end)


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
        print(f"glgpt: error: {message}", file=sys.stderr, flush=True)
    return 2
