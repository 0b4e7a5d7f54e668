"""Reads the available memory of this machine, and pauses garbage collection."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator
from pathlib import Path

# The files of a container's memory: limit, usage and statistics in cgroup version 2 and version 1
_CGROUP = Path("/sys/fs/cgroup")
_CGROUPS = (
    [_CGROUP / name for name in ("memory.max", "memory.current", "memory.stat")],
    [_CGROUP / "memory" / name for name in ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")],
)
# Bytes of cached files; the system frees them if programs need the memory
_CACHED = re.compile(r"^(?:in)?active_file (\d+)$", re.MULTILINE)


def available_memory() -> int | None:
    """Returns the bytes that programs can still allocate without swapping; None if the system does not report it.

    In a container with a memory limit, returns at most the part of the limit that is not in use.
    """
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return min([int(found[1]) << 10, *_below_limits()]) if found else None


def _below_limits() -> Iterator[int]:
    for limit, usage, statistics in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):  # no such limit: the file is missing, or contains "max"
            cached = sum(map(int, _CACHED.findall(statistics.read_text())))
            yield max(0, int(limit.read_text()) - int(usage.read_text()) + cached)


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
