"""Reads the available memory of this machine."""

from __future__ import annotations

import re
from pathlib import Path


def available_memory() -> int | None:
    """Returns the bytes that programs can still allocate without swapping; None if the system does not report it."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None
