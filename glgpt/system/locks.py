"""Locks a folder, so that only one process at a time works in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".lock"  # the locked file in a folder, on systems that cannot lock a folder


def lock_folder(path: Path) -> Callable[[], None] | None:
    """Locks a folder for this process. Returns a function that unlocks it, or None if another process has the lock.

    Where the system can lock folders, the folder itself is locked, because a lock on a file in the folder would be lost
    if the file were replaced. Elsewhere, the file `LOCK` is locked. The lock ends with the process.
    """
    if fcntl is None:
        return _lock_file(path / LOCK)
    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return lambda: os.close(handle)


def _lock_file(file: Path) -> Callable[[], None] | None:
    import filelock

    lock = filelock.FileLock(file)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return None

    def unlock() -> None:
        lock.release()
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)

    return unlock
