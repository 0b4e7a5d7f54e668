"""Adds flow control to uvicorn's WebSocket protocol: sending an answer waits while the client does not read."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

# A client must receive an answer within ANSWER_TIMEOUT_S + (bytes of the answer) / MIN_BYTES_PER_S seconds.
ANSWER_TIMEOUT_S = 30.0
MIN_BYTES_PER_S = 1 << 20
# Maximum bytes of a WebSocket fragment; a fragment is written when at most 64 KiB of the previous one remain unsent
PIECE_BYTES = 1 << 18
MAX_PONGS = 16  # maximum number of pongs that are queued while the client does not read


class BoundedProtocol(WebSocketsSansIOProtocol):
    """uvicorn's protocol with a bounded send buffer. Long messages are sent in fragments.

    `send` returns when at most 64 KiB of the message (asyncio's limit) remain in the transport's buffer. A client that
    takes too long is disconnected.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sending = asyncio.Lock()  # held while a message is sent: no other message may come between its fragments
        self._pongs = 0

    async def send(self, message: Any) -> None:
        """Sends an event of the application.

        Raises ClientDisconnected if the client has disconnected, or takes too long to receive the event.
        """
        if message["type"] != "websocket.send":
            await self._drained(self.loop.time() + ANSWER_TIMEOUT_S)
            await super().send(message)
            return
        async with self._sending:
            data = memoryview(message["bytes"])
            end = self.loop.time() + ANSWER_TIMEOUT_S + len(data) / MIN_BYTES_PER_S
            for start in range(0, max(1, len(data)), PIECE_BYTES):
                self._fragment(data[start : start + PIECE_BYTES], start == 0, start + PIECE_BYTES >= len(data))
                await self._drained(end)

    def _fragment(self, data: memoryview, first: bool, last: bool) -> None:
        try:
            if first:
                self.conn.send_binary(data, fin=last)
            else:
                self.conn.send_continuation(data, fin=last)
        except InvalidState:
            raise ClientDisconnected from None
        self.transport.write(b"".join(self.conn.data_to_send()))

    async def _drained(self, end: float) -> None:
        if not self.writable.is_set() and not self.disconnected:
            try:
                await asyncio.wait_for(self.writable.wait(), end - self.loop.time())
            except asyncio.TimeoutError:
                self.transport.abort()  # closing would wait until the buffer is empty
                raise ClientDisconnected from None
        if self.disconnected:
            raise ClientDisconnected

    def resume_writing(self) -> None:
        """Resumes sending."""
        super().resume_writing()
        self._pongs = 0

    def handle_ping(self) -> None:
        """Answers a ping. Disconnects a client that sends more than `MAX_PONGS` pings while it does not read."""
        self._pongs += not self.writable.is_set()
        if self._pongs > MAX_PONGS:
            self.transport.abort()
        else:
            super().handle_ping()

    def keepalive_timeout(self) -> None:
        """Disconnects a client that did not answer a ping.

        If this server has paused reading, pings again instead: messages that are not read yet may precede the pong.
        """
        if not self.read_paused:
            super().keepalive_timeout()
            return
        self.pong_timer = self.pending_ping_payload = None
        self.schedule_ping()
