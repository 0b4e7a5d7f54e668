"""Configures uvicorn for the gateway: connection limits, and WebSockets with flow control."""

from __future__ import annotations

from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from glgpt.federation import protocol
from glgpt.page.connections import BACKLOG, Connections, http_protocol


class FlowControl(WebSocketsSansIOProtocol):  # type: ignore[misc, unused-ignore]  # Any where uvicorn is not installed
    """uvicorn's WebSocket protocol with flow control: `send` waits while the send buffer of a slow client is full.

    `send` of uvicorn 0.49 waits for the event `writable`, but nothing in that version clears the event, so the process
    would buffer everything that is sent to a slow client.
    """

    def pause_writing(self) -> None:
        """Blocks sending until the transport's buffer has space again."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Resumes sending."""
        self.writable.set()

    def send_receive_event_to_app(self) -> None:
        """Delivers a message, and drops uvicorn's copy, which uvicorn would retain until the next message."""
        super().send_receive_event_to_app()
        self.bytes = bytearray()

    def keepalive_timeout(self) -> None:
        """Disconnects a client that does not answer pings, and discards the data that the client has not read."""
        super().keepalive_timeout()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Releases senders that wait for a disconnected client."""
        self.writable.set()
        super().connection_lost(exc)


def configuration(app: Any, connections: Connections, **more: Any) -> uvicorn.Config:
    """Returns uvicorn's settings for the ASGI application `app`.

    `connections` counts and limits the connections of the listening socket. Compression is off: weight changes hardly
    compress, and each socket would hold two compression windows.
    """
    settings: dict[str, Any] = {
        "loop": "asyncio",  # asyncio calls the method `close` of accepted sockets, which updates `connections`
        "http": http_protocol(connections),
        "backlog": BACKLOG,
        "ws": FlowControl,
        "ws_max_size": max(protocol.MAX_FRAME_BYTES, protocol.MAX_TEXT_BYTES) + 1024,
        "ws_ping_interval": 20,
        "ws_ping_timeout": 60,
        "ws_per_message_deflate": False,
        "log_config": None,
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": 1,
    }
    return uvicorn.Config(app, **(settings | more))
