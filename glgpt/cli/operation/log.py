"""Prints the library's log messages about models, split servers and pages on stderr."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

SHOWN = ("glgpt.inference", "glgpt.page", "glgpt.wire")


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # On a terminal, generated text may be on the current line when a warning arrives. A warning therefore begins
        # with a line break.
        amid = record.levelno >= logging.WARNING and sys.stderr.isatty() and sys.stdout.isatty()
        print("\n" * amid + f"glgpt: {record.getMessage()}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def log_on_stderr() -> Iterator[None]:
    """Prints messages of level INFO and above on stderr inside the block."""
    handler, loggers = _Stderr(), [logging.getLogger(name) for name in SHOWN]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)


@contextlib.contextmanager
def log_elsewhere() -> Iterator[None]:
    """Undoes `log_on_stderr` inside the block: a server formats its log itself, so messages go to the root logger."""
    loggers = [logging.getLogger(name) for name in SHOWN]
    before = [(logger.handlers[:], logger.level) for logger in loggers]
    for logger in loggers:
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
    try:
        yield
    finally:
        for logger, (handlers, level) in zip(loggers, before, strict=True):
            logger.handlers[:] = handlers
            logger.setLevel(level)
