"""Limits each client's share of a server: the rate of connecting, open connections, memory for answers."""

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

OPENS_PER_S, OPENS_AT_ONCE = 50.0, 200.0  # connections per client
MAX_CLIENTS = 1024  # number of clients whose rates are remembered
IDLE_TIMEOUT_S = 5.0  # seconds after which an idle connection can be closed for a new one, if the server is full
SMALL_BYTES = 1 << 20  # bytes; answers up to this size do not count towards the budget
MAX_LARGE_BYTES = 256 << 20  # maximum bytes of all large answers in progress
MAX_CLIENT_BYTES = 128 << 20  # maximum bytes of one client's large answers; a single answer may exceed it


def client_of(socket: WebSocket) -> str:
    """Returns the address or network to which a connection is charged (see `client_network`).

    Behind a reverse proxy on this machine, it is the address in X-Forwarded-For.
    """
    return client_network(socket.client.host if socket.client else "")


class Rates:
    """Lets each client open `OPENS_PER_S` connections per second in bursts of `OPENS_AT_ONCE`; as many more wait."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by client: number left, time

    async def take(self, client: str) -> bool:
        """Waits until the client may open a connection. Returns False at once if too many are waiting already."""
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
    """An open connection and its task. `active` is the time of its last message or answer."""

    client: str
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)
    active: float = field(default_factory=time.monotonic)
    busy: bool = False  # True while a message is being answered


class Connections:
    """Tracks the open connections, at most `most`.

    At the limit, the client with the most connections loses one to a client that has fewer: the one that is idle for
    longest, or else the one that is being answered for longest. Between clients with equally many, only a connection
    that has been idle for `IDLE_TIMEOUT_S` seconds is closed. Its client can reconnect and continue its session.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: dict[Place, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def admit(self, client: str) -> Place | None:
        """Adds the connection of the current task. Returns None if all places are taken by others.

        Cancels the task of a connection that loses its place.
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
        """Removes a connection that has ended. Returns False if it had lost its place already."""
        had = connection in self._open
        self._open.pop(connection, None)
        return had


class Budget:
    """Bounds the memory of large answers, from before they are computed until they are sent.

    Answers wait until there is space, one client's in their order and clients in rotation. A client's answers take at
    most `MAX_CLIENT_BYTES` bytes, or it has a single larger one.
    """

    def __init__(self) -> None:
        self.held = 0
        self._of: Counter[str] = Counter()  # bytes held by client
        self._waiting: OrderedDict[str, deque[tuple[int, asyncio.Event]]] = OrderedDict()  # the next client first

    @contextlib.asynccontextmanager
    async def room(self, client: str, nbytes: int) -> AsyncIterator[None]:
        """Reserves `nbytes` for an answer within the context, after waiting until there is space."""
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
        """Admits waiting answers in rotation. An answer that does not fit yet delays the clients after it."""
        for client in list(self._waiting):
            nbytes, ready = self._waiting[client][0]
            if self._of[client] and self._of[client] + nbytes > MAX_CLIENT_BYTES:
                continue  # its own earlier answers are in the way
            if self.held and self.held + nbytes > MAX_LARGE_BYTES:
                return
            self.held, self._of[client] = self.held + nbytes, self._of[client] + nbytes
            self._waiting[client].popleft()
            ready.set()
            queue = self._waiting.pop(client)
            if queue:
                self._waiting[client] = queue  # after the others
