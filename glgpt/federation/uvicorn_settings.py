"""Listens for the gateway: uvicorn's settings, limits on connections, and the flow control that its WebSockets lack."""

from __future__ import annotations

from typing import Any

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from glgpt.federation import protocol
from glgpt.page.connections import BACKLOG, Connections, http_protocol


class FlowControl(WebSocketsSansIOProtocol):  # type: ignore[misc, unused-ignore]  # Any where uvicorn is not installed
    """uvicorn's sockets (0.49), which wait until a client has read what was sent before.

    uvicorn's `send` waits for `writable`, but nothing of uvicorn ever clears it, so that the process would hold all
    that is sent to a client that reads slowly.
    """

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """The transport's buffer has room."""
        self.writable.set()

    def send_receive_event_to_app(self) -> None:
        """Hands a message over, and keeps no copy until the next one comes."""
        super().send_receive_event_to_app()
        self.bytes = bytearray()

    def keepalive_timeout(self) -> None:
        """Drops a client that answers no ping, with what it has not read."""
        super().keepalive_timeout()
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits for a client that is gone."""
        self.writable.set()
        super().connection_lost(exc)


def configuration(app: Any, connections: Connections, **more: Any) -> uvicorn.Config:
    """Returns uvicorn's settings for the ASGI application `app` on a socket whose connections these are.

    Messages are not compressed: changes of weights are noise, and each socket would hold two windows.
    """
    settings: dict[str, Any] = {
        "loop": "asyncio",  # whose transports close what `Listener` accepted
        "http": http_protocol(connections),
        "backlog": BACKLOG,
        "ws": FlowControl,
        "ws_max_size": max(protocol.FRAME, protocol.MOST_TEXT) + 1024,
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
