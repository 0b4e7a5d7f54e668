"""Limits the logs of a federation's processes, so that a hostile client cannot fill the disk."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from glgpt.system.logs import MAX_LOG_BYTES, start_logging

# Maximum number of records that one line of source code may log per period, and length of the period in seconds
MAX_RECORDS, PERIOD_S = 20, 60.0


class Throttle(logging.Filter):
    """Drops records of a line of source code that logs too often.

    The line's first record in a later period reports the number of dropped records.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        # For each line of source code: the start of the period, and its numbers of records and of dropped records
        self._seen: dict[tuple[str, int, int], list[float]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the record is to be written. Critical records are always written."""
        if record.levelno >= logging.CRITICAL:
            return True
        now = self._clock()
        seen = self._seen.setdefault((record.name, record.levelno, record.lineno), [now, 0, 0])
        if now - seen[0] >= PERIOD_S:
            if seen[2]:
                record.msg = f"{record.getMessage()} ({seen[2]:.0f} similar records were dropped)"
                record.args = ()
            seen[:] = [now, 0, 0]
        seen[1] += 1
        if seen[1] > MAX_RECORDS:
            seen[2] += 1
            return False
        return True


def log_to_stderr(level: str = "info", style: str = "text") -> None:
    """Logs the records of all loggers to stderr, limited by `Throttle`. `serve` has redirected stderr to a file."""
    handler = start_logging(logging.StreamHandler(), level, style)
    handler.addFilter(Throttle())


def rotate(log: Path) -> None:
    """Moves the contents of a log that exceeds `MAX_LOG_BYTES` to the file `NAME.1`, and overwrites that file.

    The log file itself stays in place, because a process appends to it. Records logged during the move may be lost.
    """
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        with log.open("r+b") as file:
            file.truncate()
