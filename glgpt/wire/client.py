"""Connects a client to a split server, which runs some of a model's blocks.

A step sends rows: the hidden states or token ids of consecutive positions of a text. For each connection, the server
has a session, which holds the attention caches of the rows of one text. Another text replaces these rows. Steps are
numbered, so that the client can resume after a disconnect.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from glgpt.errors import GlgptError, quoted, written
from glgpt.wire import messages
from glgpt.wire.messages import AGAIN, PROTOCOL, Ask, Failed, Look, Looked, Open, Opened, Step, Stepped

logger = logging.getLogger(__name__)

RECONNECT_TIMEOUT_S = 30.0  # seconds within which a lost connection must be restored
ANSWER_TIMEOUT_S = 120.0  # seconds without an answer after which a server counts as lost
MAX_RESENDS = 20  # maximum number of reconnections while `take` waits for one answer
# Maximum number of attempts at one request. If a server lost the session's rows in an attempt, the next attempt sends
# the text again (replays it).
MAX_REPLAYS = 20
BACKOFF_S = (0.05, 2.0)  # seconds between attempts to connect: first, maximum
ADVICE = "check that `glgpt split serve` is running there"


class ForgottenError(Exception):
    """The server lost rows of the session, or an answer that the client has not received.

    The server holds the session's first `held` rows. The client must send the rows after these again, and the rows for
    which it received no answer.
    """

    def __init__(self, held: int) -> None:
        super().__init__(f"the server holds only {held} rows of the session")
        self.held = held


class LostError(Exception):
    """The connection was lost."""


class BusyError(LostError):
    """The server refuses the client for now; a later attempt may succeed."""


@dataclass
class Traffic:
    """Counts message bytes, and milliseconds on a server (`there_ms`), in a queue there, on the network (`wire_ms`)."""

    steps: int = 0
    rows: int = 0
    sent: int = 0
    received: int = 0
    there_ms: float = 0.0
    queue_ms: float = 0.0
    wire_ms: float = 0.0
    reconnects: int = 0
    replays: int = 0


class Connection:
    """A session on a split server. `submit` sends steps; `take` returns their answers in the same order.

    `wire` is the number format of hidden states; `part` requests fewer blocks than the server holds. If the connection
    is lost, the client tries for up to `patience` seconds to restore it, and resends unanswered steps. If the server
    has lost the session or an answer, `take` raises `ForgottenError`. The constructor raises GlgptError if the address
    is invalid, or if the server is unreachable or refuses the client.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        wire: str = "f32",
        model: str | None = None,
        part: str | None = None,
        patience: float = RECONNECT_TIMEOUT_S,
    ) -> None:
        self.url, self.patience = checked_url(url), patience
        self._token, self._wire, self.model, self._part = token, wire, model, part
        self._socket: Any = None
        self._opened = contextlib.ExitStack()  # closes the socket
        self._inbox: deque[bytes] = deque()
        self._unanswered: deque[tuple[int, bytes, float, int]] = deque()  # seq, message, time of sending, rows
        self._next, self._last = 0, 0.0
        self._session: str | None = None
        self.traffic = Traffic()
        try:
            self.opened = self._open()
        except BusyError as error:
            raise GlgptError(f"{self.url}: {error}; try again later") from None
        except LostError as error:
            raise GlgptError(f"{self.url}: {error}; {ADVICE}") from None

    # -- steps --------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Returns the number of unanswered steps."""
        return len(self._unanswered)

    def submit(self, pos: int, n: int, payload: bytes, ask: Ask | None) -> None:
        """Sends a step of `n` rows from position `pos`; `ask` requests tokens. `take` returns the answer."""
        self._send(Step(seq=self._next, pos=pos, n=n, ask=ask), n, payload)

    def look(self, n: int, names: tuple[str, ...], payload: bytes) -> None:
        """Requests the activations `names` of `n` rows. `take` returns the answer."""
        self._send(Look(seq=self._next, n=n, names=names), n, payload)

    def _send(self, step: Step | Look, rows: int, payload: bytes) -> None:
        message = messages.encode(step, payload)
        self._unanswered.append((self._next, message, time.perf_counter(), rows))
        self._next += 1
        self._transmit(message)

    def ready(self) -> bool:
        """True if an answer has arrived, so that `take` will not wait."""
        if not self._inbox and self._socket is not None:
            try:
                self._inbox.append(self._receive(0))
            except TimeoutError:
                return False
            except LostError:
                self._disconnect()
        return bool(self._inbox)

    def take(self) -> tuple[Stepped | Looked, memoryview]:
        """Waits for the answer to the oldest unanswered step.

        Raises ForgottenError if rows must be sent again, and GlgptError if the server cannot answer.
        """
        resends = 0
        while True:
            seq, _, sent, rows = self._unanswered[0]
            try:
                if self._socket is None:
                    raise LostError("the connection was lost")
                data = self._inbox.popleft() if self._inbox else self._receive(ANSWER_TIMEOUT_S)
                header, payload = messages.decode_answer(data)
                if isinstance(header, Opened):
                    raise LostError("the server opened the session a second time")
            except (LostError, TimeoutError, GlgptError) as error:
                if resends == MAX_RESENDS:
                    self.abandon()
                    raise GlgptError(f"{self.url}: no answer after {MAX_RESENDS} reconnections: {error}") from None
                resends += 1
                self._resume()
                continue
            if isinstance(header, Failed):
                self._heed(header)
                continue
            if header.seq != seq:  # a proxy sent a message twice or out of order
                if header.seq > seq:
                    self._disconnect()
                continue
            if isinstance(header, Stepped) and header.n != rows:
                self.abandon()
                raise GlgptError(f"{self.url}: the server answered {rows} rows with {header.n}")
            self._unanswered.popleft()
            self._count(header, len(data), sent, rows)
            return header, payload

    def _count(self, header: Stepped | Looked, received: int, sent: float, rows: int) -> None:
        traffic, now = self.traffic, time.perf_counter()
        there, queue = header.ms, header.queue_ms if isinstance(header, Stepped) else 0.0
        since = max(sent, self._last)  # pipelined steps overlap: the time before the previous answer is not counted
        self._last = now
        traffic.steps, traffic.rows, traffic.received = (
            traffic.steps + 1,
            traffic.rows + rows,
            traffic.received + received,
        )
        traffic.there_ms, traffic.queue_ms = traffic.there_ms + there, traffic.queue_ms + queue
        traffic.wire_ms += max(0.0, 1000 * (now - since) - there - queue)

    def _heed(self, header: Failed) -> None:
        """Handles an error from the server. If it is final, raises GlgptError.

        Otherwise opens a new session, and raises ForgottenError so that the caller sends the text again.
        """
        if header.code not in AGAIN:
            self.abandon()  # otherwise the step would be resent
            raise GlgptError(f"{self.url}: {quoted(header.message, 300)}")
        self._disconnect()
        self._session = None
        self._resume()

    def abandon(self) -> None:
        """Discards unanswered steps and the session. The next text starts a new session."""
        self._disconnect()
        self._unanswered.clear()
        self._session = None

    # -- the connection -----------------------------------------------------------------------------------------

    def _resume(self) -> None:
        """Reconnects and resends unanswered steps. Logs a warning if the first attempt fails.

        Raises ForgottenError if the server lost the session, or no longer has the answer to one of these steps. Raises
        GlgptError if the client is not connected after `patience` seconds.
        """
        self._disconnect()
        self.traffic.reconnects += 1
        end, wait, session = time.monotonic() + self.patience, BACKOFF_S[0], self._session
        warned = False
        while True:
            try:
                self.opened = self._open()
                break
            except LostError as error:
                if time.monotonic() + wait > end:
                    why = f"lost the server: {error}; tried again for {self.patience:.0f} s"
                    raise GlgptError(f"{self.url}: {why}; {ADVICE}") from None
                if not warned:
                    how = "%s: the connection was lost (%s); trying again for %.0f s"
                    logger.warning(how, self.url, error, self.patience)
                    warned = True
                time.sleep(wait)
                wait = min(2 * wait, BACKOFF_S[1])
        if warned:
            logger.info("%s: connected again", self.url)
        done = self.opened.seq
        if session is not None and self._session == session and all(s >= done for s, *_ in self._unanswered):
            for _, message, *_ in self._unanswered:
                self._transmit(message)
            return
        self.traffic.replays += 1
        self._unanswered.clear()
        self._next = done + 1
        raise ForgottenError(self.opened.held)

    def _open(self) -> Opened:
        """Connects. Raises LostError if a later attempt may succeed, and GlgptError if not."""
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidProxy, InvalidURI
        from websockets.sync.client import connect

        host = urlsplit(self.url).hostname or ""
        proxy: Literal[True] | None = None if host in ("localhost", "127.0.0.1", "::1") else True
        try:
            opening = connect(self.url, compression=None, max_size=None, open_timeout=10, close_timeout=1, proxy=proxy)
            self._socket = self._opened.enter_context(opening)
        except InvalidURI as error:
            raise GlgptError(f"{written(self.url)} is not a server's address: {quoted(error)}") from None
        except (InvalidProxy, ImportError) as error:  # ImportError: a SOCKS proxy needs another package
            raise GlgptError(
                f"{written(self.url)} cannot be reached through the proxy of the environment: {quoted(error, 200)}; "
                "change the proxy's variable, or exclude the server with no_proxy"
            ) from None
        except (OSError, InvalidHandshake, ConnectionClosed, EOFError) as error:
            raise LostError(quoted(str(error) or type(error).__name__, 200)) from None
        self._inbox.clear()
        hello = Open(
            protocol=PROTOCOL,
            token=self._token,
            model=self.model,
            session=self._session,
            part=self._part,
            wire=self._wire,  # type: ignore[arg-type]
        )
        try:
            self._transmit(messages.encode(hello))
            header, _ = messages.decode_answer(self._receive(ANSWER_TIMEOUT_S))
        except (TimeoutError, GlgptError) as error:
            self._disconnect()
            raise LostError(str(error) or "no answer") from None
        if self._socket is None:
            raise LostError("the connection was lost while it was opened")
        if isinstance(header, Failed):
            self._disconnect()
            if header.code in AGAIN:
                raise BusyError(quoted(header.message, 200))
            raise GlgptError(f"{self.url}: {quoted(header.message, 300)}")
        if not isinstance(header, Opened):
            self._disconnect()
            raise GlgptError(f"{self.url} is not a split server: it answered `open` with `{header.op}`")
        self._session = header.session
        return header

    def _transmit(self, message: bytes) -> None:
        if self._socket is None:
            return  # `take` reconnects and resends the message
        from websockets.exceptions import ConnectionClosed

        try:
            self._socket.send(message)
            self.traffic.sent += len(message)
        except (ConnectionClosed, OSError):
            self._disconnect()

    def _receive(self, timeout: float) -> bytes:
        from websockets.exceptions import ConnectionClosed

        if self._socket is None:
            raise LostError("the connection was lost")
        try:
            data = self._socket.recv(timeout=timeout)
        except (ConnectionClosed, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise LostError(quoted(str(error) or "the connection was closed", 200)) from None
        return data if isinstance(data, bytes) else str(data).encode()

    def _disconnect(self) -> None:
        self._inbox.clear()
        self._socket = None
        with contextlib.suppress(OSError):  # the socket is closed already
            self._opened.close()

    def close(self) -> None:
        """Closes the connection. Closing twice is harmless."""
        self._disconnect()


def checked_url(url: str) -> str:
    """Returns the URL unchanged. Raises GlgptError unless its scheme is ws or wss and it names a host.

    The URL may omit the port.
    """
    try:
        found = urlsplit(url)
        good = found.scheme in ("ws", "wss") and found.hostname and (found.port is None or found.port > 0)
    except ValueError:
        good = False
    if not good:
        raise GlgptError(f"{written(url)} is not a server's address; use ws://HOST:PORT or wss://HOST:PORT")
    return url
