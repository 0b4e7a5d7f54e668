"""Memory of this machine."""

from __future__ import annotations

import re
from pathlib import Path


def available_memory() -> int | None:
    """Returns how many bytes programs can still take without swapping; None where the system does not tell."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None
