"""Logs of servers: text or one JSON object a line, on stderr or in a file that is rotated."""

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
MAX_LOG_BYTES = 8 << 20  # of a file, after which it is rotated
KEPT_LOGS = 5  # rotated files
NOISY = ("httpx", "httpx2", "asyncio")  # which log every request


@contextlib.contextmanager
def logging_to(file: str | None = None, level: str = "warning", style: str = "text") -> Iterator[None]:
    """Logs the whole process's records from `level` on, to `file` or stderr, until the block ends.

    `extra={"fields": {...}}` of a record gives it fields as well as its message. Raises FileError for a file that
    cannot be written.
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
    """Gives all records from `level` on to a handler, in a style of `STYLES`; returns it."""
    handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    return handler


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, the record's fields, and an exception's traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line."""
        entry = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        entry |= {"message": record.getMessage(), **_fields(record)}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=True, default=str)


class TextFormatter(logging.Formatter):
    """Time (UTC), level, message and fields in one line, without control characters: much of it comes from clients."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line, followed by a traceback if there is one."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname.lower()} {quoted(record.getMessage() + fields, 1000)}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03}Z"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return dict(getattr(record, "fields", {}))
