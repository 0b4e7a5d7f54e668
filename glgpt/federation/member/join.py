"""Defines the desktop client of a federation, which trains rounds with this machine's OpenGL and sends the updates.

The client runs no code from the host. A separate thread reads the socket. If it receives a newer round during training,
the client stops training the old round after the current step. Training continues while the connection is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect

from glgpt.errors import ArgumentError, GlgptError, is_utf8, quoted
from glgpt.federation import protocol
from glgpt.federation.member.host import Host, Link
from glgpt.federation.member.worker import Asked, Worker, host_folder, ids_of, open_slot
from glgpt.federation.protocol import Answer, Closed, Join, Pong, Ready, RoundOffer, Update, Vector, Welcome, WrapUp
from glgpt.federation.session import Session
from glgpt.text.dataset import Ids
from glgpt.text.files import Text

logger = logging.getLogger(__name__)
# Minimum and maximum seconds between two attempts to connect. Each wait is multiplied by a random factor of 0.7 to 1.3.
MIN_BACKOFF_S, MAX_BACKOFF_S = 0.5, 4.0
PING_INTERVAL_S = 10.0  # seconds between two pings
PROGRESS_INTERVAL_S = 0.5  # seconds between two progress messages
STALL_TIMEOUT_S = 60.0  # seconds without a message from the host after which the socket is reopened
FATAL = (protocol.NO_TOKEN, protocol.FULL, protocol.REMOVED)  # close codes after which the client does not reconnect


@dataclass
class Hooks:
    """Callbacks of a client. Each of them is optional."""

    on_state: Callable[[str], object] | None = None  # receives the client's current activity as text
    on_step: Callable[[int, int, float], object] | None = None  # round, step in the round, loss (NaN if unknown)
    on_round: Callable[[dict[str, Any]], object] | None = None  # the host's answer to an update

    def say(self, text: str) -> None:
        """Calls `on_state`."""
        if self.on_state:
            self.on_state(text)


@dataclass
class Round:
    """A round that the host offered, and its update."""

    message: RoundOffer
    parameters: Vector
    wrap_up: bool = False
    update: tuple[Update, bytes] | None = None  # message and data, set after training
    answered: bool = False


@dataclass
class Socket:
    """Holds the round to train. A thread keeps a connection to the host open, and reconnects after a loss."""

    link: Link
    join: Join  # the first message of each connection
    hooks: Hooks
    on_welcome: Callable[[Welcome], None]
    session: Session
    round: Round | None = None
    closed: str = ""  # the reason why the host ended the session; "" until then
    failed: str = ""  # the reason why this client cannot take part; "" if it can
    # Set when `round`, `closed` or `failed` may have changed
    fresh: threading.Event = field(default_factory=threading.Event)
    _connection: ClientConnection | None = None
    _stop: bool = False
    _sent: float = 0.0
    _ms: float = 0.0

    def start(self) -> None:
        """Starts the thread that connects."""
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Closes the connection and ends the thread."""
        self._stop = True
        if self._connection is not None:
            with contextlib.suppress(Exception):
                self._connection.close()
        self._thread.join(5)

    def _keep(self) -> None:
        wait = MIN_BACKOFF_S
        while not (self._stop or self.closed or self.failed):
            try:
                with connect(
                    self.link.socket,
                    max_size=protocol.MAX_FRAME_BYTES + 1024,
                    open_timeout=20,
                    compression=None,
                    proxy=None,
                    ping_timeout=STALL_TIMEOUT_S,
                ) as connection:
                    self._connection = connection
                    self._say(self.join.model_dump())
                    self._listen(connection)
                    wait = MIN_BACKOFF_S
            except ConnectionClosed as ended:
                code, reason = (ended.rcvd.code, ended.rcvd.reason) if ended.rcvd else (0, "")
                if code in FATAL:
                    self.failed = reason or "the host closed the connection"
                logger.info("the socket closed: %s %s", code, reason)
            except (OSError, InvalidHandshake, TimeoutError) as error:
                logger.info("no connection: %s", quoted(error, 200))
            except GlgptError as error:
                self.failed = f"the host sent an invalid message: {quoted(error, 200)}"
            except Exception:
                logger.exception("the socket failed")
            self._connection = None
            if not (self._stop or self.closed or self.failed):
                self.hooks.say("reconnecting")
                time.sleep(wait * random.uniform(0.7, 1.3))
                wait = min(MAX_BACKOFF_S, 2 * wait)
        self.fresh.set()

    def _listen(self, connection: ClientConnection) -> None:
        heard = asked = time.monotonic()
        while not self._stop:
            try:
                text = connection.recv(timeout=1.0)
                heard = time.monotonic()
            except TimeoutError:
                if time.monotonic() - heard > STALL_TIMEOUT_S:
                    return
                text = None
            if time.monotonic() - asked > PING_INTERVAL_S:
                asked = self._sent = time.monotonic()
                self._say({"type": "ping", "n": 0, "ms": self._ms})
            if isinstance(text, str):
                self._heed(connection, text)
            if self.closed:
                return

    def _heed(self, connection: ClientConnection, text: str) -> None:
        said = protocol.parsed_from_host(text)
        if isinstance(said, Welcome):
            self.join = self.join.model_copy(update={"resume": said.resume})
            self.on_welcome(said)
            self._announce()
        elif isinstance(said, RoundOffer):
            self._take(connection, said)
        elif isinstance(said, WrapUp):
            if self.round and self.round.message.attempt == said.attempt:
                self.round.wrap_up = True
        elif isinstance(said, Ready):
            self._upload(connection, said)
        elif isinstance(said, Answer):
            self._answered(said)
        elif isinstance(said, Pong):
            self._ms = 1000 * (time.monotonic() - self._sent)
        elif isinstance(said, Closed):
            self.closed = quoted(said.why, 200)
            self.fresh.set()

    def _take(self, connection: ClientConnection, offer: RoundOffer) -> None:
        """Receives a round's weights. Raises GlgptError if the round contradicts the session's terms."""
        size, steps = 4 * self.session.parameters, self.session.local_steps
        if (offer.bytes, len(offer.lr)) != (size, steps):
            raise GlgptError(f"a round of {offer.bytes} bytes and {len(offer.lr)} steps, not {size} and {steps}")
        data = bytearray()
        while len(data) < size:
            frame = connection.recv(timeout=STALL_TIMEOUT_S)
            if isinstance(frame, bytes):
                data += frame
        if len(data) != size:
            raise GlgptError(f"{len(data)} bytes of weights, not {size}")
        held = self.round
        if held is None or held.message.attempt != offer.attempt or held.answered:
            self.round = Round(offer, np.frombuffer(data, "<f4").astype(np.float32, copy=False))
        self.fresh.set()

    def _say(self, message: dict[str, Any], data: bytes = b"") -> None:
        if self._connection is not None:
            self._connection.send(json.dumps(message))

    def progress(self, message: dict[str, Any]) -> None:
        """Sends the progress of the round, if there is a connection."""
        with contextlib.suppress(Exception):
            self._say({"type": "progress", **message})

    def deliver(self, round_: Round) -> None:
        """Announces a round's update to the host, which then requests the data of the update.

        Without a connection, the thread announces the update after it has reconnected.
        """
        if self.round is round_:
            with contextlib.suppress(Exception):
                self._announce()

    def _announce(self) -> None:
        held = self.round
        if held is not None and held.update is not None and not held.answered:
            self._say(held.update[0].model_dump())

    def _upload(self, connection: ClientConnection, ready: Ready) -> None:
        held = self.round
        if held is None or held.update is None or ready.attempt != held.message.attempt:
            return
        for frame in itertools.islice(protocol.frames(held.update[1]), ready.have, None):
            connection.send(frame)

    def _answered(self, answer: Answer) -> None:
        held = self.round
        if held is None or answer.attempt != held.message.attempt:
            return
        held.answered = True
        if self.hooks.on_round:
            said = {"norm": answer.norm} if answer.type == "accepted" else {"why": quoted(answer.why, 200)}
            self.hooks.on_round({"type": answer.type, "round": held.message.round, **said})
        self.fresh.set()


class Client:
    """A desktop client that trains a session's rounds, on its own `text` or, if `text` is None, on the session's text.

    Raises ArgumentError for an invalid `name`, and GlgptError if the client cannot take part.
    """

    def __init__(self, link: Link, text: Text | None, *, name: str, device: str | int, hooks: Hooks) -> None:
        if len(name) > protocol.MAX_NAME or not is_utf8(name):
            raise ArgumentError(f"--name {quoted(name)} is not UTF-8 text of at most {protocol.MAX_NAME} characters")
        self.link, self.hooks, self.name, self.own = link, hooks, name, text
        self.host = Host(link)
        self.session = self.host.session()
        self.folder = host_folder(link.base, self.session.id)
        self.stop = threading.Event()
        self.rounds = 0
        self._told = 0.0
        hooks.say("reading the text")
        self.ids = self._ids(text)
        hooks.say("compiling the shaders")
        self.worker = Worker(self.session, self.ids, device, open_slot(self.folder))
        self.socket = Socket(link, self._join(), hooks, self._welcome, self.session)

    def _ids(self, text: Text | None) -> Ids:
        s = self.session
        if text is None:
            return self.host.ids(s)
        return ids_of(s, text, self.host.tokenizer, self.folder)

    def _join(self) -> Join:
        return Join(
            token=self.link.token,
            resume=self.worker.slot.key,
            name=self.name,
            device=self.worker.trainer.device.renderer[: protocol.MAX_DEVICE],
            kind="desktop",
            digest=self.session.digest,
            tokenizer=self.session.tokenizer,
            own_text=self.own is not None,
        )

    def _welcome(self, welcome: Welcome) -> None:
        self.worker.slot.keep_key(welcome.resume)
        self.hooks.say(f"joined as {quoted(welcome.name)}; waiting for a round")

    def run(self) -> str:
        """Trains rounds until the session ends or `stop` is set. Returns why the training ended.

        Raises GlgptError if this client cannot take part in the session.
        """
        self.socket.start()
        try:
            while not self.stop.is_set():
                self.socket.fresh.wait(0.2)
                self.socket.fresh.clear()
                if self.socket.failed:
                    raise GlgptError(f"cannot take part in the session: {quoted(self.socket.failed, 200)}")
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
        offer = round_.message
        began = time.monotonic()

        def told(step: int, loss: float | None) -> str:
            self._tell(round_, step, loss, began)
            return "drop" if self._overtaken(round_) else "stop" if round_.wrap_up else "on"

        asked = Asked(offer.round, offer.step, tuple(offer.lr), offer.seed, offer.shard)
        learned = self.worker.train(asked, round_.parameters, told)
        if learned is None:
            return
        data, scale = protocol.encode(self.session.dtype, learned.parameters, round_.parameters)
        round_.update = (
            Update(
                round=offer.round,
                attempt=offer.attempt,
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
        if time.monotonic() - self._told > PROGRESS_INTERVAL_S or step == self.session.local_steps:
            self._told = time.monotonic()
            self.socket.progress({"step": step, "loss": loss, "tokens_per_s": round(rate, 1)})
        if self.hooks.on_step:
            self.hooks.on_step(round_.message.round, step, loss if loss is not None else math.nan)
