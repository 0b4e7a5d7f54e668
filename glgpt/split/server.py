"""The WebSocket application around an engine, and the server that runs it: who may connect, sizes, rates, draining."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any
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

logger = logging.getLogger(__name__)
PORT = 8043
GREETING = 10.0  # seconds in which a connection must say `open`
HEARD = 1.0  # seconds in which a client that is turned away may say `open`
TOLD = 2.0  # seconds in which a client must take the word that the server ends
DRAIN = 10.0  # seconds that steps under way have to end
LOCAL = ("localhost", "127.0.0.1", "::1")
CLOSED = {DRAINING: 1012, FULL: 1013, TOKEN: 1008, UNSUITABLE: 1008, BAD: 1008}  # WebSocket close codes


@dataclass(frozen=True)
class Access:
    """Who may connect: those who say `token`, and pages of these `origins`, or where none is given of this machine."""

    token: str | None = None
    origins: tuple[str, ...] = ()

    def allows(self, origin: str | None) -> bool:
        """Whether a page of this origin may connect; programs that are no browser have none."""
        if origin is None or origin in self.origins:
            return True
        try:
            return not self.origins and urlsplit(origin).hostname in LOCAL
        except ValueError:  # no address
            return False


class Application:
    """The ASGI application of an engine: one session a connection, one step of each at a time."""

    def __init__(self, engine: EngineBase, access: Access, idle: float = 600.0) -> None:
        self.engine, self.access, self.idle = engine, access, max(idle, GREETING)
        self.draining, self.under_way = False, 0
        self.rates, self.connections, self.answers = Rates(), Connections(4 * engine.most + 16), Budget()
        self._holders: dict[str, WebSocket] = {}  # of the sessions, by key
        routes = [Route("/", self._about), Route("/health", self._health), WebSocketRoute("/", self._connection)]
        self.asgi = Headers(Starlette(routes=routes))
        metrics.CONNECTIONS.set_function(lambda: len(self.connections))
        metrics.SESSIONS.set_function(lambda: len(self._holders))
        metrics.MAX_SESSIONS.set(engine.most)
        metrics.DRAINING.set_function(lambda: self.draining)

    async def _about(self, _: Request) -> JSONResponse:
        """What a person sees who opens the address in a browser."""
        about = self.engine.describe()
        return JSONResponse({"glgpt": "split", "model": about["model"], "holds": about["holds"]})

    async def _health(self, _: Request) -> JSONResponse:
        """Answers a health check: 503 once no more steps are taken."""
        return JSONResponse({"status": "draining" if self.draining else "ok"}, 503 if self.draining else 200)

    async def _connection(self, socket: WebSocket) -> None:
        origin, client = socket.headers.get("origin"), client_of(socket)
        if not self.access.allows(origin):
            await socket.close(1008)  # before the handshake: answered with 403
            return
        if not await self.rates.take(client):
            await socket.close(1013)
            return
        await socket.accept()
        connection = self.connections.admit(client)
        if connection is None:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):  # gone
                with contextlib.suppress(asyncio.TimeoutError, KeyError):
                    await asyncio.wait_for(socket.receive_bytes(), HEARD)  # else it is cut off while it sends
                await _refuse(socket, FULL, f"the server has {len(self.connections)} connections, as many as it takes")
            return
        logger.info("connected", extra=_fields(socket))
        try:
            await self._serve(socket, connection)
        except (WebSocketDisconnect, RuntimeError, OSError):  # gone, or closed by us meanwhile
            return
        except asyncio.CancelledError:
            if self.connections.remove(connection):  # the server ends
                raise
            with contextlib.suppress(RuntimeError, OSError):  # it has made way for another, which is not an error
                await socket.close(1013)
        finally:
            self.connections.remove(connection)
            logger.info("disconnected", extra=_fields(socket))

    async def _serve(self, socket: WebSocket, connection: Place) -> None:
        try:
            hello = await asyncio.wait_for(socket.receive_bytes(), GREETING)
        except asyncio.TimeoutError:
            await _refuse(socket, BAD, f"no `open` came within {GREETING:.0f} s")
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
        coming = _coming(socket)
        try:
            while True:
                connection.active, connection.busy = time.monotonic(), False
                if not (await asyncio.wait({coming}, timeout=self.idle))[0]:
                    await socket.close(1000)
                    return
                connection.active, connection.busy = time.monotonic(), True
                message, coming = coming, _coming(socket)
                answer = asyncio.ensure_future(self._answer(socket, message, connection.client, session, part, wire))
                try:
                    either: set[asyncio.Future[Any]] = {answer, coming}
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if not answer.done() and isinstance(coming.exception(), WebSocketDisconnect):
                        return  # the client is gone: what waits in the queue is dropped
                    if not await answer:
                        return
                finally:
                    answer.cancel()
        finally:
            coming.cancel()

    async def _opened(self, socket: WebSocket, data: bytes, client: str) -> tuple[Session, Part, str] | None:
        """The session that a connection asks for; None where it was refused."""
        try:
            hello, _ = decode_request(data)
        except GlgptError as error:
            await _refuse(socket, BAD, f"not a message of this protocol: {error}")
            return None
        if not isinstance(hello, Open) or hello.protocol != PROTOCOL:
            version = f"; this server speaks version {PROTOCOL}" if isinstance(hello, Open) else ""
            await _refuse(socket, UNSUITABLE, f"the first message must be `open` of the same protocol{version}")
            return None
        if self.access.token is not None and not hmac.compare_digest(
            (hello.token or "").encode(), self.access.token.encode()
        ):
            await asyncio.sleep(0.5)  # guessing takes time
            await _refuse(socket, TOKEN, "the token is wrong" if hello.token else "a token is needed (--token)")
            return None
        if hello.model is not None and hello.model != self.engine.digest:
            what = f"this server holds another model or checkpoint: {quoted(self.engine.name)}"
            await _refuse(socket, UNSUITABLE, what)
            return None
        if self.draining:
            await _refuse(socket, DRAINING, "the server is ending")
            return None
        try:
            session, part = await self.engine.open(hello.session, hello.part, client)
        except GlgptError as error:
            await _refuse(socket, UNSUITABLE, str(error))
            return None
        if before := self._holders.get(session.key):
            with contextlib.suppress(RuntimeError, OSError):
                await before.close(1000)  # a client that connects again while its old connection lingers
        self._holders[session.key] = socket
        about = self.engine.describe(part)
        await socket.send_bytes(encode(Opened(session=session.key, held=session.held, seq=session.seq, **about)))
        return session, part, hello.wire

    async def _answer(
        self, socket: WebSocket, message: asyncio.Future[bytes], client: str, session: Session, part: Part, wire: str
    ) -> bool:
        """Answers one message, which has come; False ends the connection."""
        try:
            data = message.result()
        except KeyError:
            await _refuse(socket, BAD, "messages are bytes; this was text")
            return False
        if self.draining:
            await _refuse(socket, DRAINING, "the server is ending")
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
        except Exception as error:  # a fault of ours: the client must hear of it, or it asks for ever
            if socket.client_state is socket.application_state is WebSocketState.CONNECTED:
                logger.error("a step failed", extra=_fields(socket), exc_info=error)
                await _refuse(socket, BAD, f"the server failed: {type(error).__name__}: {error}")
        finally:
            self.under_way -= 1
        return False

    async def _reply(
        self, socket: WebSocket, data: bytes, client: str, session: Session, part: Part, wire: str
    ) -> None:
        """Computes and sends the answer to a message. Raises GlgptError, and `LapsedError`."""
        came = time.perf_counter()
        message, payload = decode_request(data)
        if isinstance(message, Open):
            raise GlgptError("`open` came a second time")
        if message.n > (context := self.engine.config.context):
            raise GlgptError(f"{message.n} rows are beyond this server's context of {context} (--context)")
        x = self.engine.rows(part, payload, message.n, wire)
        async with self.answers.room(client, self.engine.answer_bytes(part, message)):
            if isinstance(message, Look):
                session.seq, session.reply = message.seq, b""
                reply = await self.engine.look(part, message, x, client)
            elif session.evicted or message.seq in (session.seq, session.seq + 1):
                reply = await self.engine.step(StepRequest(session, message, x, wire, came, client))
            else:
                raise LapsedError(ORDER, f"step {message.seq} came after step {session.seq}")
            await socket.send_bytes(reply)
            metrics.SENT.inc(len(reply))

    async def drain(self) -> None:
        """Takes no more steps and waits for those under way; connections are told as they ask."""
        self.draining = True
        end = time.monotonic() + DRAIN
        while self.under_way and time.monotonic() < end:
            await asyncio.sleep(0.02)
        told = (
            asyncio.wait_for(_refuse(socket, DRAINING, "the server is ending"), TOLD)
            for socket in list(self._holders.values())
        )
        await asyncio.gather(*told, return_exceptions=True)


def _coming(socket: WebSocket) -> asyncio.Future[bytes]:
    """The next message; its exception may be ignored."""
    found = asyncio.ensure_future(socket.receive_bytes())
    found.add_done_callback(lambda future: future.cancelled() or future.exception())
    return found


async def _refuse(socket: WebSocket, code: str, message: str) -> None:
    """Says why, and closes."""
    metrics.REFUSED.labels(code).inc()
    logger.info("refused", extra=_fields(socket, code=code, why=message))
    await socket.send_bytes(encode(Failed(code=code, message=quoted(message, 300))))
    await socket.close(CLOSED.get(code, 1000))


def _fields(socket: WebSocket, **more: str) -> dict[str, Any]:
    """The fields of a log record about a connection."""
    return {"fields": {"client": f"{socket.client.host}:{socket.client.port}" if socket.client else "", **more}}


class _Uvicorn(uvicorn.Server):
    """Drains at the first signal, and ends at the second."""

    app: Application

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to drain; the signal's own handler has it once the server has ended."""
        if self.app.draining:
            super().handle_exit(sig, frame)
            self.force_exit = True
            return
        self.app.draining = True
        asyncio.get_running_loop().call_soon_threadsafe(self._begin_drain, sig)

    def _begin_drain(self, sig: int) -> None:
        self._draining = asyncio.ensure_future(self._drain(sig))  # held, so that it is not collected

    async def _drain(self, sig: int) -> None:
        try:
            await self.app.drain()
        finally:  # a drain that fails must not leave a server that refuses everything and does not end
            super().handle_exit(sig, None)


class StageServer:
    """A server of an engine on `host`, whose port is taken when this is made; port 0 takes a free one.

    Raises ArgumentError for an address that cannot be used, and for one that others reach without a token.
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
            raise ArgumentError(f"--listen {quoted(host)} lets others connect; give --token, which they must know")
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
        """Serves until a signal comes, which ends it when the steps under way are done, or until `stop`."""
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def stop(self) -> None:
        """Ends `run` from another thread, without waiting for who is connected."""
        self._server.should_exit = self._server.force_exit = True


def _named(host: str) -> str:
    return f"[{host}]" if ":" in host else host
