"""Reads the available memory of this machine, and pauses garbage collection."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator
from pathlib import Path


def available_memory() -> int | None:
    """Returns the bytes that programs can still allocate without swapping; None if the system does not report it."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) << 10 if found else None


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Pauses garbage collection inside the block.

    While many objects are created, garbage collection takes long and frees little.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
