"""Writes logs of servers, as text or as one JSON object per line, to stderr or to a rotated file."""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glgpt.errors import FileError, quoted

LEVELS = ("debug", "info", "warning", "error")
STYLES = ("text", "json")
MAX_LOG_BYTES = 8 << 20  # size at which a file is rotated
KEPT_LOGS = 5  # number of rotated files that are kept
NOISY = ("httpx", "httpx2", "asyncio")  # loggers whose messages below WARNING are dropped: httpx logs every request


@contextlib.contextmanager
def logging_to(file: str | None = None, level: str = "warning", style: str = "text") -> Iterator[None]:
    """Sends the process's log records of level `level` and above to `file`, or to stderr, inside the block.

    A log call with `extra={"fields": {...}}` adds fields to its message. Raises FileError for a file that cannot be
    written.
    """
    handler: logging.Handler = logging.StreamHandler()
    if file is not None:
        try:
            handler = logging.handlers.RotatingFileHandler(
                Path(file).expanduser(), maxBytes=MAX_LOG_BYTES, backupCount=KEPT_LOGS, encoding="utf-8"
            )
        except OSError as error:
            raise FileError(f"--log-file {quoted(file, 300)} cannot be written: {error.strerror}") from None
    root = logging.getLogger()
    before = root.level
    start_logging(handler, level, style)
    try:
        yield
    finally:
        root.setLevel(before)
        root.removeHandler(handler)
        handler.close()


def start_logging(handler: logging.Handler, level: str, style: str) -> logging.Handler:
    """Sends all records of level `level` and above to a handler, in a style of `STYLES`; returns the handler."""
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON: time (UTC), level, logger, message, fields, an exception's traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        entry = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        entry |= {"message": record.getMessage(), **_fields(record)}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=True, default=str)


class TextFormatter(logging.Formatter):
    """Formats a record as a line (time in UTC, level, message, fields) of limited length without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, followed by a traceback if there is one."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname.lower()} {quoted(record.getMessage() + fields, 1000)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return dict(getattr(record, "fields", {}))
