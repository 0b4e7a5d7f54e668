"""A desktop in a federation: trains rounds with this machine's OpenGL and sends what it learned.

No code comes from the host.

The socket lives in a thread of its own, so that a round that another overtook is noticed between two steps, and a
connection that is lost costs nothing but the way back.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import queue
import random
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

from glgpt.errors import GlgptError, quoted
from glgpt.federation import protocol
from glgpt.federation.member.worker import Asked, Worker, ids_of, open_slot
from glgpt.federation.protocol import Join, Update, Vector
from glgpt.federation.session import Session
from glgpt.text.dataset import Ids
from glgpt.text.files import Text

logger = logging.getLogger(__name__)
BACKOFF, MOST_BACKOFF = 0.5, 4.0  # seconds between two tries to connect
PING = 10.0
TELL = 0.5  # seconds between two words on how far a round is
STALL = 60.0  # seconds without a word from the host after which the socket is opened anew
FATAL = (protocol.NO_TOKEN, protocol.FULL, protocol.REMOVED)


@dataclass(frozen=True)
class Link:
    """An invitation as a link: where, and the token behind the `#`."""

    base: str  # http://host:port/
    token: str

    @classmethod
    def parse(cls, text: str) -> Link:
        """Raises GlgptError for what is no invitation's link; takes the browsers' link too."""
        split = urlsplit(text)
        token = split.fragment.rpartition("together=")[2].partition("&")[0]
        if split.scheme not in ("http", "https") or not split.hostname or "." not in token:
            raise GlgptError(
                f"{quoted(text)} is no invitation: it is the link that glgpt federate serve prints, such as "
                "http://127.0.0.1:8043/#…"
            )
        path = split.path.removesuffix("train/")
        return cls(f"{split.scheme}://{split.netloc}{path if path.endswith('/') else path + '/'}", token)

    @property
    def socket(self) -> str:
        """The address of the socket."""
        return "ws" + self.base.removeprefix("http") + "v1/socket"


@dataclass
class Hooks:
    """What is called while a client takes part; None is not."""

    on_state: Callable[[str], object] | None = None  # what it does now, in words
    on_step: Callable[[int, int, float], object] | None = None  # round, step in it, loss
    on_round: Callable[[dict[str, Any]], object] | None = None  # what became of an update

    def say(self, text: str) -> None:
        """`on_state`."""
        if self.on_state:
            self.on_state(text)


class Host:
    """The REST calls of a client."""

    def __init__(self, link: Link) -> None:
        headers = {"Authorization": f"Bearer {link.token}"}
        trusted = ssl.create_default_context()  # as the socket does: the system's authorities, or SSL_CERT_FILE
        self._client = httpx.Client(base_url=link.base, headers=headers, timeout=60, trust_env=False, verify=trusted)
        self._base = link.base

    def get(self, path: str) -> httpx.Response:
        """Raises GlgptError where the host does not answer, or does not know the invitation."""
        try:
            response = self._client.get(path)
        except httpx.HTTPError as error:
            raise GlgptError(f"{self._base} does not answer: {quoted(error, 200)}") from None
        if response.status_code == 401:
            raise GlgptError("this invitation does not admit: it is unknown, expired or revoked; ask for another link")
        if response.status_code != 200:
            raise GlgptError(f"{self._base} answered {response.status_code}; is it a glgpt federation?")
        return response

    def session(self) -> Session:
        """The session's terms."""
        try:
            fields = {k: v for k, v in self.get("v1/session").json().items() if k in Session.model_fields}
            return Session.model_validate_json(json.dumps(fields))
        except ValueError as error:
            if isinstance(error, GlgptError):
                raise
            raise GlgptError(f"{self._base} is of another version of glgpt: {quoted(error, 200)}") from None

    def tokenizer(self) -> dict[str, str]:
        """The tokenizer's files by name."""
        return dict(self.get("v1/session/tokenizer").json())

    def ids(self, vocab_size: int) -> Ids:
        """The session's text."""
        data = self.get("v1/session/text").content
        ids = np.frombuffer(data[: len(data) // 4 * 4], "<u4").astype(np.uint32)
        if len(ids) and int(ids.max()) >= vocab_size:
            raise GlgptError("the session's text holds ids outside its vocabulary")
        return ids


@dataclass
class Round:
    """A round to train, as the host asked for it."""

    message: dict[str, Any]
    parameters: Vector
    wrap_up: bool = False
    update: tuple[Update, bytes] | None = None  # what was learned, until the host has answered
    answered: bool = False


@dataclass
class Socket:
    """The connection: a thread that keeps it open, sends what is to be sent, and holds the round to train."""

    link: Link
    join: Callable[[], Join]
    hooks: Hooks
    on_welcome: Callable[[dict[str, Any]], None]
    inbox: queue.Queue[dict[str, Any]] = field(default_factory=queue.Queue)
    round: Round | None = None
    closed: str = ""  # the host has ended the session: why
    failed: str = ""  # the host does not want this client: why
    fresh: threading.Event = field(default_factory=threading.Event)  # set when there is something to look at
    _connection: ClientConnection | None = None
    _stop: bool = False
    _sent: float = 0.0
    _ms: float = 0.0

    def start(self) -> None:
        """Connects, in a thread."""
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Closes the connection."""
        self._stop = True
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
        self._thread.join(5)

    def _keep(self) -> None:
        wait = BACKOFF
        while not (self._stop or self.closed or self.failed):
            try:
                with connect(
                    self.link.socket,
                    max_size=protocol.FRAME + 1024,
                    open_timeout=20,
                    compression=None,
                    proxy=None,
                    ping_timeout=STALL,
                ) as connection:
                    self._connection = connection
                    self._say(self.join().model_dump())
                    self._listen(connection)
                    wait = BACKOFF
            except ConnectionClosed as ended:
                code, reason = (ended.rcvd.code, ended.rcvd.reason) if ended.rcvd else (0, "")
                if code in FATAL:
                    self.failed = reason or "the host closed the connection"
                logger.info("the socket closed: %s %s", code, reason)
            except (OSError, InvalidHandshake, TimeoutError) as error:
                logger.info("no connection: %s", error)
            except Exception:
                logger.exception("the socket failed")
            self._connection = None
            if not (self._stop or self.closed or self.failed):
                self.hooks.say("reconnecting")
                time.sleep(wait * random.uniform(0.7, 1.3))
                wait = min(MOST_BACKOFF, 2 * wait)
        self.fresh.set()

    def _listen(self, connection: ClientConnection) -> None:
        heard = asked = time.monotonic()
        while not self._stop:
            try:
                text = connection.recv(timeout=1.0)
                heard = time.monotonic()
            except TimeoutError:
                if time.monotonic() - heard > STALL:
                    return
                text = None
            if time.monotonic() - asked > PING:
                asked = self._sent = time.monotonic()
                self._say({"type": "ping", "n": 0, "ms": self._ms})
            if isinstance(text, str):
                self._heed(connection, json.loads(text))
            if self.closed:
                return

    def _heed(self, connection: ClientConnection, said: dict[str, Any]) -> None:
        kind = said.get("type")
        if kind == "welcome":
            self.on_welcome(said)
            self._announce()
        elif kind == "round":
            data = bytearray()
            while len(data) < said["bytes"]:
                frame = connection.recv(timeout=STALL)
                if isinstance(frame, bytes):
                    data += frame
            held = self.round
            if held is None or held.message["attempt"] != said["attempt"] or held.answered:
                self.round = Round(said, np.frombuffer(bytes(data), "<f4").astype(np.float32))
            self.fresh.set()
        elif kind == "wrap_up" and self.round and self.round.message["attempt"] == said["attempt"]:
            self.round.wrap_up = True
        elif kind == "ready":
            self._upload(connection, said)
        elif kind in ("accepted", "rejected"):
            self._answered(said)
        elif kind == "pong":
            self._ms = 1000 * (time.monotonic() - self._sent)
        elif kind == "closed":
            self.closed = str(said.get("why", "the session ended"))
            self.fresh.set()

    def _say(self, message: dict[str, Any], data: bytes = b"") -> None:
        if self._connection is not None:
            self._connection.send(json.dumps(message))

    def progress(self, message: dict[str, Any]) -> None:
        """Tells how far the round is; lost where there is no connection."""
        with contextlib.suppress(Exception):
            self._say({"type": "progress", **message})

    def deliver(self, round_: Round) -> None:
        """Sends a round's update now, or as soon as there is a connection."""
        if self.round is round_:
            with contextlib.suppress(Exception):
                self._announce()

    def _announce(self) -> None:
        held = self.round
        if held is not None and held.update is not None and not held.answered:
            self._say(held.update[0].model_dump())

    def _upload(self, connection: ClientConnection, said: dict[str, Any]) -> None:
        held = self.round
        if held is None or held.update is None or said["attempt"] != held.message["attempt"]:
            return
        for frame in list(protocol.frames(held.update[1]))[int(said["have"]) :]:
            connection.send(frame)

    def _answered(self, said: dict[str, Any]) -> None:
        held = self.round
        if held is None or said.get("attempt") != held.message["attempt"]:
            return
        held.answered = True
        if self.hooks.on_round:
            self.hooks.on_round({"round": held.message["round"], **said})
        self.fresh.set()


class Client:
    """Takes part in a session until it ends, or `stop` is set."""

    def __init__(self, link: Link, text: Text | None, *, name: str, device: str | int, hooks: Hooks) -> None:
        self.link, self.hooks, self.name, self.own = link, hooks, name, text
        self.host = Host(link)
        self.session = self.host.session()
        self.stop = threading.Event()
        self.rounds = 0
        self._told = 0.0
        hooks.say("reading the text")
        self.ids = self._ids(text)
        hooks.say("compiling the shaders")
        self.worker = Worker(self.session, self.ids, device, open_slot(self.session.id))
        self.socket = Socket(link, self._join, hooks, self._welcome)

    def _ids(self, text: Text | None) -> Ids:
        s = self.session
        if text is None:
            return self.host.ids(s.model.vocab_size)
        return ids_of(s, text, self.host.tokenizer)

    def _join(self) -> Join:
        return Join(
            token=self.link.token,
            resume=self.worker.slot.key,
            name=self.name,
            device=self.worker.trainer.device.renderer[:200],
            kind="desktop",
            digest=self.session.digest,
            tokenizer=self.session.tokenizer,
            own_text=self.own is not None,
        )

    def _welcome(self, said: dict[str, Any]) -> None:
        self.worker.slot.keep_key(said["resume"])
        self.hooks.say(f"joined as {said['name']}; waiting for a round")

    def run(self) -> str:
        """Trains round after round; gives why it ended. Raises GlgptError where the host does not want this client."""
        self.socket.start()
        try:
            while not self.stop.is_set():
                self.socket.fresh.wait(0.2)
                self.socket.fresh.clear()
                if self.socket.failed:
                    raise GlgptError(f"the host refused: {quoted(self.socket.failed, 200)}")
                round_ = self.socket.round
                if round_ is not None and round_.update is None and not round_.answered:
                    self._train(round_)
                elif self.socket.closed:
                    return self.socket.closed
            return "left"
        finally:
            self.socket.stop()
            self.worker.close()

    def _overtaken(self, round_: Round) -> bool:
        return self.stop.is_set() or self.socket.round is not round_ or bool(self.socket.closed)

    def _train(self, round_: Round) -> None:
        said = round_.message
        began = time.monotonic()

        def told(step: int, loss: float | None) -> str:
            self._tell(round_, step, loss, began)
            return "drop" if self._overtaken(round_) else "stop" if round_.wrap_up else "on"

        asked = Asked(said["round"], said["step"], tuple(said["lr"]), said["seed"], tuple(said["shard"]))
        learned = self.worker.train(asked, round_.parameters, told)
        if learned is None:
            return
        data, scale = protocol.encode(self.session.dtype, learned.parameters, round_.parameters)
        round_.update = (
            Update(
                round=said["round"],
                attempt=said["attempt"],
                tokens=learned.tokens,
                steps=learned.steps,
                loss=learned.loss,
                seconds=round(time.monotonic() - began, 3),
                dtype=self.session.dtype,
                scale=scale,
                bytes=len(data),
            ),
            data,
        )
        self.rounds += 1
        self.socket.deliver(round_)

    def _tell(self, round_: Round, step: int, loss: float | None, began: float) -> None:
        s = self.session.settings
        rate = step * s.batch * s.accumulate * s.context / max(1e-6, time.monotonic() - began)
        if loss is not None and not math.isfinite(loss):
            loss = None
        if time.monotonic() - self._told > TELL or step == self.session.local_steps:
            self._told = time.monotonic()
            self.socket.progress({"step": step, "loss": loss, "tokens_per_s": round(rate, 1)})
        if self.hooks.on_step:
            self.hooks.on_step(round_.message["round"], step, loss if loss is not None else math.nan)
