"""Tests that connections that never finish a request or never read are closed in time while others are served."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from helpers.waiting import until
from load import HALF_REQUESTS

from glgpt.page.connections import Connections, Limits, available_descriptors
from glgpt.page.serve import application, bound_socket, settings


@contextlib.contextmanager
def serving(folder: Path, limits: Limits, **more: object) -> Iterator[tuple[int, Connections]]:
    """Runs a server in a thread; yields its port and connections."""
    listener = bound_socket("127.0.0.1", 0, "--port", limits)
    server = uvicorn.Server(settings(application(folder), listener.connections, **more))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], listener.connections
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "index.html").write_text("<title>page</title>")
    (tmp_path / "large.bin").write_bytes(bytes(32 << 20))
    return tmp_path


def connect(port: int) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=20)
    made.settimeout(20)
    return made


def get(port: int) -> bytes:
    with connect(port) as made:
        made.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: made.recv(1 << 16), b""))


def ended(connection: socket.socket) -> bool:
    """Reads a connection until the server closes it; returns True."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass
    return True


def test_half_open_requests_are_closed_in_time(folder: Path) -> None:
    """Regression: half-open requests took all 1,024 file descriptors, and the server answered no other client."""
    with serving(folder, Limits(total=99, address=40, request=1.5)) as (port, connections):
        halves = [connect(port) for _ in range(32)]
        for i, half in enumerate(halves):
            half.sendall(HALF_REQUESTS[i % len(HALF_REQUESTS)])
        began = time.monotonic()
        assert b"<title>page</title>" in get(port)
        assert all(map(ended, halves))
        assert 1 < time.monotonic() - began < 15
        assert b"<title>page</title>" in get(port)
        until(lambda: not len(connections))


def test_a_second_request_must_come_in_time_too(folder: Path) -> None:
    with serving(folder, Limits(total=9, request=0.6), timeout_keep_alive=30) as (port, _), connect(port) as kept:
        for _ in range(2):
            kept.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while not answer.endswith(b"</title>"):
                answer += kept.recv(1 << 16)
            time.sleep(0.3)
        kept.sendall(b"GET / HT")
        assert ended(kept)


def test_connections_of_an_address_have_a_limit(folder: Path) -> None:
    with serving(folder, Limits(total=9, address=3)) as (port, connections):
        held = [connect(port) for _ in range(3)]
        until(lambda: len(connections) == 3)
        assert all(ended(connect(port)) for _ in range(4))
        held.pop().close()
        until(lambda: len(connections) == 2)
        assert b"<title>page</title>" in get(port)


def test_the_addresses_of_an_ipv6_network_have_one_limit() -> None:
    """Fails if each address of a /64 network counts as a separate client."""

    async def count() -> tuple[bool, bool, bool]:
        connections = Connections(Limits(total=99, address=2))
        with socket.socket() as one, socket.socket() as two:
            for number, made in enumerate((one, two), 1):
                connections.opened((f"2001:db8:1:2::{number}", 1), made)
            full, other = connections.admits("2001:db8:1:2::3"), connections.admits("2001:db8:1:3::1")
            connections.closed(("2001:db8:1:2::1", 1))
            again = connections.admits("2001:db8:1:2::3")
            connections.closed(("2001:db8:1:2::2", 1))
        return full, other, again

    assert asyncio.run(count()) == (False, True, True)


def test_an_address_without_a_limit_has_that_of_all(folder: Path) -> None:
    limits = Limits(total=4, address=1, exempt=frozenset(["127.0.0.1"]))
    with serving(folder, limits) as (port, connections):
        held = [connect(port) for _ in range(4)]
        until(lambda: len(connections) == 4)
        assert ended(connect(port)) and len(held) == 4


def test_a_client_that_does_not_read_is_disconnected(folder: Path) -> None:
    with serving(folder, Limits(total=9, stall=0.5)) as (port, connections):
        lazy, slow = connect(port), connect(port)
        for one in (lazy, slow):
            one.sendall(b"GET /large.bin HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read = 0
        for _ in range(8):  # longer than the stall limit in total, but with progress
            time.sleep(0.1)
            read += len(slow.recv(4 << 20))
        deadline = time.monotonic() + 20
        while len(connections) > 1 and time.monotonic() < deadline:
            read += len(slow.recv(1 << 14))
            time.sleep(0.02)
        assert len(connections) == 1
        while read < 32 << 20:
            read += len(slow.recv(4 << 20))
        lazy.close()
        slow.close()


def test_descriptors_are_left_for_files() -> None:
    resource = pytest.importorskip("resource")
    found = available_descriptors()
    assert found <= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 128 or found == 128
