"""Limits each client of a server: how often it connects, its open connections, and the memory for its answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.websockets import WebSocket

from glgpt.system.network import client_network

OPENS_PER_S, OPENS_AT_ONCE = 50.0, 200.0  # maximum connections that a client opens per second, and in a burst
MAX_CLIENTS = 1024  # number of clients whose rates are remembered
IDLE_TIMEOUT_S = 5.0  # if the server is full, a connection that has been idle this long can be closed for a new one
SMALL_BYTES = 1 << 20  # answers of at most this many bytes are small: `Budget` does not count them
MAX_LARGE_BYTES = 256 << 20  # maximum total bytes of all clients' large answers in progress
MAX_CLIENT_BYTES = 128 << 20  # maximum total bytes of one client's large answers; a single answer may be larger


def client_of(socket: WebSocket) -> str:
    """Returns the address or network that counts as the client of a connection (see `client_network`).

    Behind a reverse proxy on this machine, this is the address in X-Forwarded-For.
    """
    return client_network(socket.client.host if socket.client else "")


class Rates:
    """Lets each client open `OPENS_PER_S` connections per second, in bursts of up to `OPENS_AT_ONCE`.

    Up to `OPENS_AT_ONCE` further connections of a client wait; any others are refused.
    """

    def __init__(self) -> None:
        # By client: the number of connections that it may open now (negative: the number that wait), and the time at
        # which this number was computed
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def take(self, client: str) -> bool:
        """Waits until the client may open a connection.

        Returns True when it may, or False immediately if `OPENS_AT_ONCE` connections of the client are waiting.
        """
        now = time.monotonic()
        left, since = self._left.pop(client, (OPENS_AT_ONCE, now))
        left = min(OPENS_AT_ONCE, left + (now - since) * OPENS_PER_S)
        allowed = left > -OPENS_AT_ONCE
        self._left[client] = (left - allowed, now)
        while len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        if allowed and left < 1:
            await asyncio.sleep((1 - left) / OPENS_PER_S)
        return allowed


@dataclass(eq=False)
class Place:
    """An open connection and its task. `active` is the time of the connection's last message or answer."""

    client: str
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    active: float = field(default_factory=time.monotonic)
    busy: bool = False  # True while a message is being answered


class Connections:
    """Tracks the open connections of the server, of which there are at most `most`.

    At the limit, a new connection can replace another one. If the client with the most connections has at least two
    more than the connecting client, one of its connections is closed: the one that has been idle for longest or, if
    none is idle, the one whose answer has taken longest. Otherwise, a connection is closed only if it has been idle for
    `IDLE_TIMEOUT_S` seconds and its client has at least as many connections as the connecting client. A client whose
    connection was closed can connect again and continue its session.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[Place, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, client: str) -> Place | None:
        """Adds the connection of the current task.

        Returns None if the limit is reached and no connection can be closed. A connection is closed by cancelling its
        task.
        """
        if len(self._open) >= self.most:
            victim = self._victim(client)
            if victim is None:
                return None
            del self._open[victim]
            if victim.task:
                victim.task.cancel()
        found = Place(client)
        self._open[found] = None
        return found

    def _victim(self, client: str) -> Place | None:
        counts = Counter(each.client for each in self._open)
        most = max(counts.values(), default=0)
        if counts[client] + 1 < most:
            found = [each for each in self._open if counts[each.client] == most]
        else:
            since = time.monotonic() - IDLE_TIMEOUT_S
            idle = [each for each in self._open if not each.busy and each.active < since]
            found = [each for each in idle if counts[each.client] >= counts[client]]
        return min(found, key=lambda each: (each.busy, each.active), default=None)

    def remove(self, connection: Place) -> bool:
        """Removes a connection that has ended. Returns False if `admit` had removed it for a new connection."""
        had = connection in self._open
        self._open.pop(connection, None)
        return had


class Budget:
    """Bounds the memory that large answers occupy, from before they are computed until they are sent.

    Answers wait until there is space. One answer of each client is admitted in rotation, and a client's answers are in
    the order of its requests. A client's answers in progress take at most `MAX_CLIENT_BYTES` bytes in total; a larger
    answer is admitted only while no other large answer of the client is in progress.
    """

    def __init__(self) -> None:
        self.held = 0
        self._of: Counter[str] = Counter()  # bytes held, by client
        # Waiting answers by client, the next client first: the size in bytes, and the event that admits the answer
        self._waiting: OrderedDict[str, deque[tuple[int, asyncio.Event]]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def room(self, client: str, nbytes: int) -> AsyncIterator[None]:
        """Waits until there is space for an answer of `nbytes` bytes, and reserves the space until the context ends.

        Small answers neither wait nor reserve space.
        """
        if nbytes <= SMALL_BYTES:
            yield
            return
        ready = asyncio.Event()
        place = (nbytes, ready)
        self._waiting.setdefault(client, deque()).append(place)
        self._admit()
        try:
            await ready.wait()
            yield
        finally:
            if ready.is_set():
                self.held, self._of[client] = self.held - nbytes, self._of[client] - nbytes
                if not self._of[client]:
                    del self._of[client]
            else:
                self._waiting[client].remove(place)
                if not self._waiting[client]:
                    del self._waiting[client]
            self._admit()

    def _admit(self) -> None:
        """Admits waiting answers, one of each client.

        Stops at the first answer that does not fit into `MAX_LARGE_BYTES` yet. If smaller answers that fit were
        admitted before this one, it could wait forever.
        """
        for client in list(self._waiting):
            nbytes, ready = self._waiting[client][0]
            if self._of[client] and self._of[client] + nbytes > MAX_CLIENT_BYTES:
                continue  # the client's earlier answers must be sent first
            if self.held and self.held + nbytes > MAX_LARGE_BYTES:
                return
            self.held, self._of[client] = self.held + nbytes, self._of[client] + nbytes
            self._waiting[client].popleft()
            ready.set()
            queue = self._waiting.pop(client)
            if queue:
                self._waiting[client] = queue  # after the other clients
