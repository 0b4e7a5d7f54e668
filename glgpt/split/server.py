"""Serves an engine, which runs a part of a model, over WebSockets.

Controls who may connect, limits what each client may use, and answers messages in progress before it stops (draining).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import ssl
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from glgpt.errors import ArgumentError, GlgptError, quoted
from glgpt.models.part import Part
from glgpt.page.serve import Headers, bound_socket, settings
from glgpt.split import metrics
from glgpt.split.engine import EngineBase, StepRequest
from glgpt.split.limits import Budget, Connections, Place, Rates, client_of
from glgpt.split.protocol import BoundedProtocol
from glgpt.split.sessions import LapsedError, Session
from glgpt.wire.messages import (
    BAD,
    DRAINING,
    FULL,
    ORDER,
    PROTOCOL,
    TOKEN,
    UNSUITABLE,
    Failed,
    Look,
    Open,
    Opened,
    decode_request,
    encode,
)

T = TypeVar("T")
logger = logging.getLogger(__name__)
PORT = 8043
OPEN_TIMEOUT_S = 10.0  # seconds within which a client must send `open`
REFUSED_TIMEOUT_S = 1.0  # seconds that a refused client has to send `open`
SEND_TIMEOUT_S = 2.0  # seconds that a client has to receive the message that the server is shutting down
DRAIN_TIMEOUT_S = 10.0  # seconds in which messages in progress must be answered
LOCAL = ("localhost", "127.0.0.1", "::1")
CLOSED = {DRAINING: 1012, FULL: 1013, TOKEN: 1008, UNSUITABLE: 1008, BAD: 1008}  # WebSocket close codes


@dataclass(frozen=True)
class Access:
    """Decides who may connect: clients that send `token` (None: all clients).

    If the client is a page, the page must also come from one of `origins` (empty: from a server on this machine).
    """

    token: str | None = None
    origins: tuple[str, ...] = ()

    def allows(self, origin: str | None) -> bool:
        """True if a page of this origin may connect. Programs other than browsers send no origin."""
        if origin is None or origin in self.origins:
            return True
        try:
            return not self.origins and urlsplit(origin).hostname in LOCAL
        except ValueError:  # not a valid URL
            return False


class Application:
    """The ASGI application of an engine. Each connection has one session, whose messages are answered one at a time."""

    def __init__(self, engine: EngineBase, access: Access, idle: float = 600.0) -> None:
        self.engine, self.access, self.idle = engine, access, max(idle, OPEN_TIMEOUT_S)
        self.draining, self.under_way = False, 0
        self.rates, self.connections, self.answers = Rates(), Connections(4 * engine.most + 16), Budget()
        self._holders: dict[str, WebSocket] = {}  # the connection of each session, by the session's key
        self._closing: set[asyncio.Future[None]] = set()  # references to tasks that close replaced connections
        routes = [Route("/", self._about), Route("/health", self._health), WebSocketRoute("/", self._connection)]
        self.asgi = Headers(Starlette(routes=routes))
        metrics.CONNECTIONS.set_function(lambda: len(self.connections))
        metrics.SESSIONS.set_function(lambda: len(self._holders))
        metrics.MAX_SESSIONS.set(engine.most)
        metrics.DRAINING.set_function(lambda: self.draining)

    async def _about(self, _: Request) -> JSONResponse:
        """Describes the server to a person who opens its address in a browser."""
        about = self.engine.describe()
        return JSONResponse({"glgpt": "split", "model": about["model"], "holds": about["holds"]})

    async def _health(self, _: Request) -> JSONResponse:
        """Answers a health check: 503 while the server drains."""
        return JSONResponse({"status": "draining" if self.draining else "ok"}, 503 if self.draining else 200)

    async def _connection(self, socket: WebSocket) -> None:
        origin, client = socket.headers.get("origin"), client_of(socket)
        if not self.access.allows(origin):
            logger.info("refused", extra=_fields(socket, why=f"pages of {quoted(origin)} may not connect (--origin)"))
            await socket.close(1008)  # before the handshake, so the client receives 403
            return
        if not await self.rates.take(client):
            await socket.close(1013)
            return
        await socket.accept()
        connection = self.connections.admit(client)
        if connection is None:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):  # disconnected
                with contextlib.suppress(asyncio.TimeoutError, KeyError):
                    await asyncio.wait_for(socket.receive_bytes(), REFUSED_TIMEOUT_S)  # the client may still be sending
                await _refuse(socket, FULL, f"the server is full: it has {len(self.connections)} connections")
            return
        logger.info("connected", extra=_fields(socket))
        try:
            await self._serve(socket, connection)
        except (WebSocketDisconnect, RuntimeError, OSError):  # disconnected, or closed by the server
            return
        except asyncio.CancelledError:
            if self.connections.remove(connection):  # the server is shutting down
                raise
            # A new connection takes the place of this one, which is not an error of this task.
            with contextlib.suppress(RuntimeError, OSError):
                await socket.close(1013)
        finally:
            self.connections.remove(connection)
            logger.info("disconnected", extra=_fields(socket))

    async def _serve(self, socket: WebSocket, connection: Place) -> None:
        try:
            hello = await asyncio.wait_for(socket.receive_bytes(), OPEN_TIMEOUT_S)
        except asyncio.TimeoutError:
            await _refuse(socket, BAD, f"the client sent no `open` within {OPEN_TIMEOUT_S:.0f} s")
            return
        except KeyError as error:
            await _refuse(socket, BAD, f"not a message of this protocol: {error}")
            return
        opened = await self._opened(socket, hello, connection.client)
        if opened is None:
            return
        session, part, wire = opened
        try:
            await self._converse(socket, connection, session, part, wire)
        finally:
            if self._holders.get(session.key) is socket:
                del self._holders[session.key]

    async def _converse(self, socket: WebSocket, connection: Place, session: Session, part: Part, wire: str) -> None:
        """Answers messages until the connection ends, or has been idle for `idle` seconds."""
        coming = _begun(socket.receive_bytes())
        try:
            while True:
                connection.active, connection.busy = time.monotonic(), False
                if not (await asyncio.wait({coming}, timeout=self.idle))[0]:
                    await socket.close(1000)
                    return
                connection.active, connection.busy = time.monotonic(), True
                message, coming = coming, _begun(socket.receive_bytes())
                answer = _begun(self._answer(socket, message, connection.client, session, part, wire))
                try:
                    either: set[asyncio.Future[Any]] = {answer, coming}
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if not answer.done() and isinstance(coming.exception(), WebSocketDisconnect):
                        return  # the client has disconnected: its queued step is cancelled
                    if not await answer:
                        return
                finally:
                    answer.cancel()
        finally:
            coming.cancel()

    async def _opened(self, socket: WebSocket, data: bytes, client: str) -> tuple[Session, Part, str] | None:
        """Returns the session, part and wire format that the message `data` requests.

        Returns None after refusing the connection.
        """
        try:
            hello, _ = decode_request(data)
        except GlgptError as error:
            await _refuse(socket, BAD, f"not a message of this protocol: {error}")
            return None
        if not isinstance(hello, Open) or hello.protocol != PROTOCOL:
            version = f"; this server uses version {PROTOCOL}" if isinstance(hello, Open) else ""
            await _refuse(socket, UNSUITABLE, f"the first message must be `open` of the same protocol version{version}")
            return None
        if self.access.token is not None and not hmac.compare_digest(
            (hello.token or "").encode(), self.access.token.encode()
        ):
            await asyncio.sleep(0.5)  # slows down guessing
            await _refuse(socket, TOKEN, "the token is wrong" if hello.token else "a token is required (--token)")
            return None
        if hello.model is not None and hello.model != self.engine.digest:
            name = quoted(self.engine.name)
            what = f"this server holds {name}, and the client has another model or checkpoint"
            await _refuse(socket, UNSUITABLE, f"{what}; use the same --model on both sides")
            return None
        if self.draining:
            await _refuse(socket, DRAINING, "the server is shutting down")
            return None
        try:
            session, part = await self.engine.open(hello.session, hello.part, client)
        except GlgptError as error:
            await _refuse(socket, UNSUITABLE, str(error))
            return None
        if before := self._holders.get(session.key):  # the client reconnected while its old connection was still open
            closing = _begun(before.close(1000))  # not awaited: `close` waits if the old connection is dead
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._holders[session.key] = socket
        about = self.engine.describe(part)
        await socket.send_bytes(encode(Opened(session=session.key, held=session.held, seq=session.seq, **about)))
        return session, part, hello.wire

    async def _answer(
        self, socket: WebSocket, message: asyncio.Future[bytes], client: str, session: Session, part: Part, wire: str
    ) -> bool:
        """Answers one received message. Returns False if the connection must end."""
        try:
            data = message.result()
        except KeyError:
            await _refuse(socket, BAD, "messages must be binary; this one was text")
            return False
        if self.draining:
            await _refuse(socket, DRAINING, "the server is shutting down")
            return False
        self.under_way += 1
        begun = time.perf_counter()
        try:
            await self._reply(socket, data, client, session, part, wire)
            metrics.RECEIVED.inc(len(data))
            metrics.STEP_SECONDS.observe(time.perf_counter() - begun)
            return True
        except LapsedError as error:
            await _refuse(socket, error.code, str(error))
        except GlgptError as error:
            await _refuse(socket, BAD, str(error))
        except WebSocketDisconnect:
            raise
        except Exception as error:  # a bug: the client must receive an error, or it would retry forever
            if socket.client_state is socket.application_state is WebSocketState.CONNECTED:
                logger.error("a step failed", extra=_fields(socket), exc_info=error)
                await _refuse(socket, BAD, f"the server failed: {type(error).__name__}: {error}")
        finally:
            self.under_way -= 1
        return False

    async def _reply(
        self, socket: WebSocket, data: bytes, client: str, session: Session, part: Part, wire: str
    ) -> None:
        """Computes and sends the answer to a message.

        Raises GlgptError for an invalid message, and `LapsedError` if the session must be restarted.
        """
        came = time.perf_counter()
        message, payload = decode_request(data)
        if isinstance(message, Open):
            raise GlgptError("`open` was sent a second time")
        if message.n > (context := self.engine.config.context):
            raise GlgptError(f"{message.n} rows exceed this server's context of {context} (--context)")
        x = self.engine.rows(part, payload, message.n, wire)
        async with self.answers.room(client, self.engine.answer_bytes(part, message)):
            if isinstance(message, Look):
                session.seq, session.reply = message.seq, b""
                reply = await self.engine.look(part, message, x, client)
            elif session.evicted or message.seq in (session.seq, session.seq + 1):
                reply = await self.engine.step(StepRequest(session, message, x, wire, came, client))
            else:
                raise LapsedError(ORDER, f"step {message.seq} was sent after step {session.seq}")
            await socket.send_bytes(reply)
            metrics.SENT.inc(len(reply))

    async def drain(self) -> None:
        """Refuses new messages, waits up to `DRAIN_TIMEOUT_S` for answers in progress, and notifies clients."""
        self.draining = True
        end = time.monotonic() + DRAIN_TIMEOUT_S
        while self.under_way and time.monotonic() < end:
            await asyncio.sleep(0.02)
        told = (
            asyncio.wait_for(_refuse(socket, DRAINING, "the server is shutting down"), SEND_TIMEOUT_S)
            for socket in list(self._holders.values())
        )
        await asyncio.gather(*told, return_exceptions=True)


def _begun(work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Starts a task, and reads its exception when it ends: asyncio logs a warning for an exception that is not read."""
    found = asyncio.ensure_future(work)
    found.add_done_callback(lambda future: future.cancelled() or future.exception())
    return found


async def _refuse(socket: WebSocket, code: str, message: str) -> None:
    """Sends an error with the reason, and closes the socket."""
    metrics.REFUSED.labels(code).inc()
    logger.info("refused", extra=_fields(socket, code=code, why=message))
    await socket.send_bytes(encode(Failed(code=code, message=quoted(message, 300))))
    await socket.close(CLOSED.get(code, 1000))


def _fields(socket: WebSocket, **more: str) -> dict[str, Any]:
    """Returns the fields of a log record about a connection."""
    return {"fields": {"client": f"{socket.client.host}:{socket.client.port}" if socket.client else "", **more}}


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that sends answers in progress after the first signal, and ends at once at the second."""

    app: Application

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Starts to drain at the first signal; ends the server at once at the second.

        After the server has ended, uvicorn passes the signal to the handler that was set before the server started.
        """
        if self.app.draining:
            super().handle_exit(sig, frame)
            self.force_exit = True
            return
        self.app.draining = True
        asyncio.get_running_loop().call_soon_threadsafe(self._begin_drain, sig)

    def _begin_drain(self, sig: int) -> None:
        self._draining = asyncio.ensure_future(self._drain(sig))  # asyncio keeps only weak references to tasks

    async def _drain(self, sig: int) -> None:
        try:
            await self.app.drain()
        finally:  # even if draining fails, the server must end
            super().handle_exit(sig, None)


class StageServer:
    """Serves an engine on `host`. The port is bound on construction; port 0 chooses a free port.

    `certificate` holds the paths of a certificate and its key, for TLS. A connection is closed after `idle` seconds (at
    least `OPEN_TIMEOUT_S`) without a message. Raises ArgumentError if the address or the certificate cannot be used, or
    if other machines could connect without a token.
    """

    def __init__(
        self,
        engine: EngineBase,
        access: Access | None = None,
        host: str = "127.0.0.1",
        port: int = PORT,
        certificate: Sequence[str] = (),
        idle: float = 600.0,
    ) -> None:
        access = access or Access()
        if host not in LOCAL and access.token is None:
            raise ArgumentError(
                f"--listen {quoted(host)} lets other machines connect; give --token, which their clients must send"
            )
        self.app = Application(engine, access, idle)
        self._socket = bound_socket(host, port, "--listen")
        files = dict(zip(("ssl_certfile", "ssl_keyfile"), certificate, strict=False))
        config = settings(
            self.app.asgi,
            self._socket.connections,
            ws=BoundedProtocol,
            ws_max_size=engine.most_bytes,
            ws_ping_interval=20,
            ws_ping_timeout=20,
            ws_per_message_deflate=False,
            timeout_graceful_shutdown=2,
            **files,
        )
        if files:
            try:
                config.load()
            except (OSError, ssl.SSLError) as error:
                self._socket.close()
                raise ArgumentError(f"--tls {quoted(certificate[0])} cannot be used: {quoted(error)}") from None
        self.url = f"{'wss' if files else 'ws'}://{_named(host)}:{self._socket.getsockname()[1]}"
        self._server = _Uvicorn(config)
        self._server.app = self.app

    def run(self) -> None:
        """Serves until `stop` is called, or until a signal; after a signal, answers in progress are sent first."""
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def stop(self) -> None:
        """Ends `run` from another thread, without waiting for the connected clients."""
        self._server.should_exit = self._server.force_exit = True


def _named(host: str) -> str:
    return f"[{host}]" if ":" in host else host
