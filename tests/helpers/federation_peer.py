"""A client that sends the messages of a test over a real socket."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync import client as sync

from glgpt.federation import protocol
from helpers.fake_session import TOKENIZER


class Peer:
    """A member's socket."""

    def __init__(self, host: Any, token: str, **changed: Any) -> None:
        self.host, self.session = host, host.gateway.session
        self.socket = sync.connect(
            host.address.replace("http", "ws") + "v1/socket", max_size=None, compression=None, ping_interval=None
        )
        self.heard: list[dict[str, Any]] = []
        fields = {"type": "join", "version": 1, "token": token, "digest": self.session.digest, "tokenizer": TOKENIZER}
        self.say(fields | changed)

    def say(self, message: Any) -> None:
        self.socket.send(message if isinstance(message, str) else json.dumps(message))

    def next(self, kind: str, timeout: float = 30) -> Any:
        """Returns the next message of a kind. A round includes its parameters."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            text = self.socket.recv(timeout=max(0.01, end - time.monotonic()))
            if isinstance(text, bytes):
                continue
            said = json.loads(text)
            self.heard.append(said)
            if said["type"] == "round":
                data = b""
                while len(data) < said["bytes"]:
                    data += self.socket.recv(timeout=30)
                said["parameters"] = np.frombuffer(data, "<f4")
            if said["type"] == kind:
                return said
        raise TimeoutError(kind)

    def update(self, round_: Any, after: Any, **changed: Any) -> tuple[dict[str, Any], bytes]:
        before = round_["parameters"]
        data, scale = protocol.encode(self.session.dtype, np.asarray(after, np.float32), before)
        fields = {"type": "update", "round": round_["round"], "attempt": round_["attempt"], "tokens": 64, "steps": 4}
        fields |= {"loss": 2.5, "dtype": self.session.dtype, "scale": scale, "bytes": len(data)}
        return fields | changed, data

    def train(self, round_: Any, after: Any, **changed: Any) -> dict[str, Any]:
        """Sends an update and returns its outcome."""
        update, data = self.update(round_, after, **changed)
        self.say(update)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            text = self.socket.recv(timeout=30)
            if isinstance(text, bytes):
                continue
            said = json.loads(text)
            if said["type"] == "ready":
                for frame in list(protocol.frames(data))[said["have"] :]:
                    self.socket.send(frame)
            elif said["type"] in ("accepted", "rejected"):
                return said
        raise TimeoutError("neither accepted nor rejected")

    def closed(self) -> tuple[int, str]:
        """Waits until the gateway closes the socket. Returns the close code and reason."""
        with pytest.raises(ConnectionClosed) as caught:
            while True:
                self.socket.recv(timeout=30)
        ended = caught.value.rcvd
        return (ended.code, ended.reason) if ended else (0, "reset")


def wait(what: Callable[[], Any], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)
