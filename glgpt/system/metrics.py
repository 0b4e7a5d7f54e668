"""Serves Prometheus metrics at a separate address, to which the server's users need no access."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import start_http_server

from glgpt.errors import ArgumentError, quoted


@contextlib.contextmanager
def metrics_server(host: str, port: int) -> Iterator[str]:
    """Serves the process's metrics inside the block; yields the URL. Port 0 selects a free port.

    Raises ArgumentError for an address that cannot be used.
    """
    try:
        server, thread = start_http_server(port, host)
    except (OSError, OverflowError, UnicodeError) as error:
        wrong = "it is not a host's name" if isinstance(error, UnicodeError) else "it must be from 0 to 65535"
        why = getattr(error, "strerror", None) or wrong
        raise ArgumentError(f"--metrics {quoted(host)}:{port} cannot be used: {why}") from None
    try:
        place = f"[{host}]" if ":" in host else host
        yield f"http://{place}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
