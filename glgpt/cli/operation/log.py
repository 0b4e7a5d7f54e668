"""Prints what the library logs about models and pages, as lines on stderr."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

SHOWN = ("glgpt.inference", "glgpt.page")


class _Stderr(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(f"glgpt: {record.getMessage()}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def log_on_stderr() -> Iterator[None]:
    """Prints messages from INFO up while it is open."""
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
    """Leaves these messages to the root logger's handlers while it is open: a server formats its own."""
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
