"""Limits a server's connections: how many are open, in total and per address, and how long a request may take.

uvicorn limits neither the connections of an address nor the time of a request. So a client that sends half a request
would hold a file descriptor indefinitely.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from glgpt.system.network import client_network

resource: Any
try:
    import resource
except ImportError:  # Windows does not have this module
    resource = None

logger = logging.getLogger(__name__)
Peer = tuple[str, int]  # address and port
BACKLOG = 256  # maximum number of connections that wait to be accepted
RESERVED = 128  # file descriptors for everything except connections
MAX_DESCRIPTORS = 1 << 16


def available_descriptors() -> int:
    """Increases the limit of open files, up to `MAX_DESCRIPTORS`; returns the maximum number of connections."""
    if resource is None:
        return 4096
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(RESERVED, (MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft) - RESERVED)


@dataclass(frozen=True)
class Limits:
    """Limits on the number of open connections, and on a client's time in seconds."""

    total: int = field(default_factory=available_descriptors)  # connections of all clients
    address: int = 256  # connections of one IPv4 address or of one /64 network of IPv6
    exempt: frozenset[str] = frozenset()  # addresses without the limit per address, such as that of a proxy
    request: float = 10.0  # time to send a whole request
    stall: float = 60.0  # time after which a client that does not read is disconnected


class Connections:
    """The open connections of a server, and the deadlines of their requests."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._open: Counter[str] = Counter()
        self._sockets: dict[Peer, socket.socket] = {}
        self._deadlines: dict[Peer, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._sockets)

    def admits(self, address: str) -> bool:
        """True if another connection of this address may be opened."""
        if len(self._sockets) >= self.limits.total:
            return False
        return address in self.limits.exempt or self._open[client_network(address)] < self.limits.address

    def opened(self, peer: Peer, connection: socket.socket) -> None:
        """Adds a connection and starts the deadline of its first request."""
        self._open[client_network(peer[0])] += 1
        self._sockets[peer] = connection
        self.awaits(peer)

    def closed(self, peer: Peer) -> None:
        """Removes a connection."""
        self.received(peer)
        if self._sockets.pop(peer, None) is not None:
            client = client_network(peer[0])
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def awaits(self, peer: Peer) -> None:
        """Starts a client's deadline: the client is disconnected unless it sends a whole request in time."""
        self.received(peer)
        if peer in self._sockets:
            later = asyncio.get_running_loop().call_later
            self._deadlines[peer] = later(self.limits.request, self._disconnect, peer)

    def received(self, peer: Peer | None) -> None:
        """Cancels the deadline of a client that has sent its request."""
        if peer is not None and (deadline := self._deadlines.pop(peer, None)):
            deadline.cancel()

    def _disconnect(self, peer: Peer) -> None:
        self._deadlines.pop(peer, None)
        if connection := self._sockets.get(peer):
            with contextlib.suppress(OSError):  # the client has disconnected
                connection.shutdown(socket.SHUT_RDWR)  # the transport or the TLS handshake reads EOF and closes


class _Accepted(socket.socket):
    """A connection that is counted until it is closed."""

    def __init__(self, made: socket.socket, peer: Peer, connections: Connections) -> None:
        family, kind, proto = made.family, made.type, made.proto
        super().__init__(family, kind, proto, fileno=made.detach())
        self._peer, self._connections = peer, connections

    def close(self) -> None:
        """Closes the connection and removes it from the count."""
        super().close()
        self._connections.closed(self._peer)


class Listener(socket.socket):
    """A listening socket that closes connections beyond the limits as soon as it accepts them.

    A later check would miss connections that are still in the TLS handshake.
    """

    def __init__(self, connections: Connections, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self.connections = connections

    def accept(self) -> tuple[socket.socket, Any]:
        """Returns the next connection within the limits, as `socket.accept` does."""
        while True:
            made, address = super().accept()
            peer = (str(address[0]), int(address[1]))
            if self.connections.admits(peer[0]):
                accepted = _Accepted(made, peer, self.connections)
                self.connections.opened(peer, accepted)
                return accepted, address
            made.close()
            logger.info("too many connections: closed one from %s", peer[0])


class HttpProtocol(H11Protocol):
    """An HTTP connection of uvicorn with deadlines: the client must send its request and read the answer in time."""

    def __init__(self, *args: Any, connections: Connections, **options: Any) -> None:
        super().__init__(*args, **options)
        self._counted = connections
        self._stalled: asyncio.TimerHandle | None = None

    def handle_events(self) -> None:
        """Handles received data; cancels the deadline when a request is complete."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body:
            self._counted.received(self.client)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Cancels the deadline, since a WebSocket has its own timeouts."""
        self._counted.received(self.client)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """Starts the deadline of the next request."""
        if self.client is not None:
            self._counted.awaits(self.client)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Starts the timeout after which a client that does not read is disconnected."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self._counted.limits.stall, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancels the timeout of `pause_writing`: the client reads again."""
        super().resume_writing()
        self._progressed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the timeout of `pause_writing`: the connection has ended."""
        self._progressed()
        super().connection_lost(exc)

    def _progressed(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def http_protocol(connections: Connections) -> Any:
    """Returns the factory with which uvicorn makes the protocol of a connection."""
    return partial(HttpProtocol, connections=connections)
