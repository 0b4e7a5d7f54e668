"""Counts the processors that this process may use."""

from __future__ import annotations

import os


def available_processors() -> int:
    """Returns the number of processors that this process may use, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
