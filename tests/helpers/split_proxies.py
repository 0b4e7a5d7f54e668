"""Provides local proxies between a client and a split server. They break connections, or delay or reorder messages."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from typing import Any


class Proxy:
    """Forwards bytes between clients of `url` and the server at `target`."""

    def __init__(self, target: str) -> None:
        self.target = int(target.rpartition(":")[2])
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"ws://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for a, b in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=(a, b), daemon=True).start()

    def _copy(self, a: socket.socket, b: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.copy(a, b)
        for end in (a, b):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def copy(self, a: socket.socket, b: socket.socket) -> None:
        """Forwards bytes from a to b until a is closed."""
        while data := a.recv(1 << 16):
            b.sendall(data)

    def close(self) -> None:
        self.listener.close()


class Cutting(Proxy):
    """Breaks the connection at the reads with the numbers `after`. `cuts` counts the breaks.

    The reads of both directions and of all connections are numbered together, from 1.
    """

    def __init__(self, target: str, *after: int) -> None:
        self.after, self.reads, self.cuts = after, 0, 0
        super().__init__(target)

    def copy(self, a: socket.socket, b: socket.socket) -> None:
        while data := a.recv(1 << 16):
            self.reads += 1
            if self.reads in self.after:
                self.cuts += 1
                return
            b.sendall(data)


class Delaying(Proxy):
    """Delays data by `round_trip / 2` seconds in each direction, without reducing the throughput."""

    def __init__(self, target: str, round_trip: float) -> None:
        self.one_way = round_trip / 2
        super().__init__(target)

    def copy(self, a: socket.socket, b: socket.socket) -> None:
        line: queue.Queue[Any] = queue.Queue()

        def deliver() -> None:
            with contextlib.suppress(OSError):
                while item := line.get():
                    due, data = item
                    time.sleep(max(0.0, due - time.perf_counter()))
                    b.sendall(data)

        threading.Thread(target=deliver, daemon=True).start()
        while data := a.recv(1 << 16):
            line.put((time.perf_counter() + self.one_way, data))
        line.put(None)


class Shuffling:
    """Forwards WebSocket messages, some of them swapped or repeated.

    The first `swaps` pairs of messages that arrive within 10 ms are swapped. Every third message is sent twice; a
    swapped pair counts as one message.
    """

    def __init__(self, target: str, swaps: int) -> None:
        from websockets.sync.server import serve

        self.target, self.swaps, self.swapped, self.repeated = target, swaps, 0, 0
        self.server = serve(self._serve, "127.0.0.1", 0, compression=None, max_size=None)
        self.url = f"ws://127.0.0.1:{self.server.socket.getsockname()[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def _serve(self, client: Any) -> None:
        from websockets.sync.client import connect

        with connect(self.target, compression=None, proxy=None, max_size=None) as server:
            threading.Thread(target=self._copy, args=(server, client), daemon=True).start()
            self._copy(client, server)

    def _copy(self, a: Any, b: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            for count in range(1 << 30):
                messages = [a.recv()]
                if self.swapped < self.swaps:
                    with contextlib.suppress(TimeoutError):
                        messages.insert(0, a.recv(timeout=0.01))
                        self.swapped += 1
                if count % 3 == 2:
                    messages.append(messages[0])
                    self.repeated += 1
                for message in messages:
                    b.send(message)
        with contextlib.suppress(Exception):
            b.close()

    def close(self) -> None:
        self.server.shutdown()
