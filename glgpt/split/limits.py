"""Shares of a server by client: how often it connects, which connections stay open, how much memory answers take."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.websockets import WebSocket

OPENS_PER_S, OPENS_AT_ONCE = 50.0, 200.0  # of a client
CLIENTS = 1024  # whose rates are remembered
IDLE = 5.0  # seconds after which an idle connection makes way for another where all places are taken
SMALL = 1 << 20  # bytes of an answer that takes no place in the budget
BUDGET = 256 << 20  # bytes of the large answers that are computed or sent at a time
SHARE = 128 << 20  # of them, those of one client, which may always have a single answer


def client_of(socket: WebSocket) -> str:
    """Returns the address that a connection is charged to: of IPv6 the network of 64 bits, which one client may own.

    A reverse proxy on this machine names the address in X-Forwarded-For.
    """
    host = socket.client.host if socket.client else ""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # of a socket that has none
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return host


class Rates:
    """Lets each client open `OPENS_PER_S` connections a second, and `OPENS_AT_ONCE` at once; as many again wait."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by client: how many, at what time

    async def take(self, client: str) -> bool:
        """Returns when the client may open a connection; False if too many of its openings wait already."""
        now = time.monotonic()
        left, since = self._left.pop(client, (OPENS_AT_ONCE, now))
        left = min(OPENS_AT_ONCE, left + (now - since) * OPENS_PER_S)
        allowed = left > -OPENS_AT_ONCE
        self._left[client] = (left - allowed, now)
        while len(self._left) > CLIENTS:
            self._left.popitem(last=False)
        if allowed and left < 1:
            await asyncio.sleep((1 - left) / OPENS_PER_S)
        return allowed


@dataclass(eq=False)
class Place:
    """An open connection and the task that serves it; `active` is when its last message came or was answered."""

    client: str
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    active: float = field(default_factory=time.monotonic)
    busy: bool = False  # a message is being answered


class Connections:
    """The open connections, at most `most`.

    At the limit, the client that has most of them loses one to a client that has fewer: the one that is idle for
    longest, else the one that is being answered for longest. Clients that have equally many lose only what has been
    idle for `IDLE` seconds. A client that loses one connects again when it needs to, and continues its session.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[Place, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, client: str) -> Place | None:
        """Adds the connection that the current task serves. Returns None if there is no place for it.

        The task of a connection that loses its place is cancelled.
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
            since = time.monotonic() - IDLE
            idle = [each for each in self._open if not each.busy and each.active < since]
            found = [each for each in idle if counts[each.client] >= counts[client]]
        return min(found, key=lambda each: (each.busy, each.active), default=None)

    def remove(self, connection: Place) -> bool:
        """Removes a connection that has ended. Returns False for one that has lost its place before."""
        had = connection in self._open
        self._open.pop(connection, None)
        return had


class Budget:
    """Bounds the memory of large answers from before they are computed until the client has taken them.

    Answers wait until there is room, those of a client in their order, and clients by turns. A client has `SHARE`
    bytes at most, or a single answer.
    """

    def __init__(self) -> None:
        self.held = 0
        self._of: Counter[str] = Counter()  # bytes held by client
        self._waiting: OrderedDict[str, deque[tuple[int, asyncio.Event]]] = OrderedDict()  # the next one's turn first

    @contextlib.asynccontextmanager
    async def room(self, client: str, nbytes: int) -> AsyncIterator[None]:
        """Waits until an answer of `nbytes` has room, and holds it."""
        if nbytes <= SMALL:
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
        """Gives room to those whose turn it is. One that does not fit yet holds up the clients after it."""
        for client in list(self._waiting):
            nbytes, ready = self._waiting[client][0]
            if self._of[client] and self._of[client] + nbytes > SHARE:
                continue  # its own earlier answers are in the way
            if self.held and self.held + nbytes > BUDGET:
                return
            self.held, self._of[client] = self.held + nbytes, self._of[client] + nbytes
            self._waiting[client].popleft()
            ready.set()
            queue = self._waiting.pop(client)
            if queue:
                self._waiting[client] = queue  # after the others
