"""Waits for a condition."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object], seconds: float = 20) -> None:
    """Waits until a function returns a true value. Raises AssertionError after this many seconds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "the condition did not become true in time"
        time.sleep(0.005)
