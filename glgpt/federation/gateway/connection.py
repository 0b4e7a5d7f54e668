"""Defines the state of a client's socket: the limit on messages, the unfinished update, and the lock for sending."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from starlette.websockets import WebSocket

from glgpt.federation import protocol
from glgpt.federation.protocol import Update
from glgpt.federation.replies import GatewayMessage
from glgpt.federation.rounds.members import Member

# Number of messages that a client may send per second on average, and in one burst
MESSAGES_PER_S, MESSAGES_BURST = 50.0, 400.0
SENT_FRAME_BYTES = 1 << 17  # maximum bytes of a frame to a client; small, because each socket buffers a few frames


class Bucket:
    """A token bucket that limits how many messages a client may send."""

    def __init__(self) -> None:
        self._left, self._at = MESSAGES_BURST, time.monotonic()

    def take(self) -> bool:
        """Counts a message. Returns False if the client has sent more messages than it may."""
        now = time.monotonic()
        self._left = min(MESSAGES_BURST, self._left + (now - self._at) * MESSAGES_PER_S)
        self._at = now
        self._left -= 1
        return self._left >= 0


class Upload:
    """A partially received update.

    The received bytes are in an anonymous temporary file in `folder`, not in memory, because many clients may send at
    once.
    """

    def __init__(self, update: Update, folder: Path) -> None:
        self.update, self._have = update, 0
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115, closed with this object

    @property
    def frames(self) -> int:
        """Returns the number of frames received so far."""
        return protocol.frame_count(self._have)

    @property
    def missing(self) -> int:
        """Returns the number of bytes still to be received."""
        return self.update.bytes - self._have

    @property
    def complete(self) -> bool:
        """True if the whole update has been received."""
        return not self.missing

    def add(self, frame: bytes) -> bool:
        """Appends the next frame. Returns False if the frame's size is wrong, or the update is complete already."""
        if not self.missing or len(frame) != min(protocol.MAX_FRAME_BYTES, self.missing):
            return False
        self._file.seek(self._have)  # an earlier write may have failed halfway
        self._file.write(frame)
        self._have += len(frame)
        return True

    def data(self) -> bytes:
        """Returns the bytes received so far."""
        self._file.seek(0)
        return self._file.read()


class Client:
    """A connected socket of a member. A member may have several sockets."""

    def __init__(self, socket: WebSocket, member: Member) -> None:
        self.socket, self.member = socket, member
        self.sent = ""  # id of the last round sent on this socket
        self.upload: Upload | None = None  # the update that the client announced last
        self.owed = 0  # number of bytes that the client may still send for announced updates
        # Held while a message and its frames are sent, so that no other message is sent between them
        self._lock = asyncio.Lock()

    @property
    def busy(self) -> bool:
        """True while a message is being sent, which takes long for a slow client."""
        return self._lock.locked()

    async def say(
        self, message: GatewayMessage, data: bytes | memoryview = b"", still: Callable[[], bool] = lambda: True
    ) -> None:
        """Waits until earlier messages are sent, then sends a message followed by `data` in frames.

        Sends nothing if `still()` returns False after the wait.
        """
        async with self._lock:
            if not still():
                return
            await self.socket.send_text(json.dumps(message, allow_nan=False))
            for frame in protocol.frames(data, SENT_FRAME_BYTES):
                await self.socket.send_bytes(frame)
                self.member.bytes_out += len(frame)
