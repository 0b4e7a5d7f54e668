"""Runs a split server in a thread of the test's process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from glgpt.split.server import StageServer


@contextlib.contextmanager
def running(server: StageServer) -> Iterator[StageServer]:
    """Runs `server` until the `with` block ends. `server.app.engine` stays open afterwards."""
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(20)
        assert not thread.is_alive(), "the server did not end"
