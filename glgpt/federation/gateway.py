"""The gateway serves the clients' WebSockets, the host's REST calls, the dashboard and the exported page.

Run as `python -m glgpt.federation.gateway RUN ADDRESS …` by `glgpt federate serve`. It is one site of Flower's
Fleet: however many clients it has, it pulls each round once and answers it once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import numpy as np
import segno
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from glgpt.errors import GlgptError, quoted
from glgpt.federation import protocol
from glgpt.federation.invitations import HOST_KINDS, HOST_LINK, LIFE, digest
from glgpt.federation.operation import metrics
from glgpt.federation.operation.logs import log_to_stderr
from glgpt.federation.protocol import Join, Ping, Progress, Update
from glgpt.federation.rounds import REMOVED, Member, Refused, Rejected, Rounds, RunOver
from glgpt.federation.session import ENDED, ROUNDS, Files
from glgpt.federation.uvicorn_settings import configuration
from glgpt.page.built import built_dashboard
from glgpt.page.connections import RESERVED, Limits, available_descriptors
from glgpt.page.serve import Files as PageFiles
from glgpt.page.serve import Headers, bound_socket
from glgpt.system.metrics import metrics_server
from glgpt.system.network import client_network
from glgpt.text.tokenizer_training import FILES as TOKENIZER_FILES

T = TypeVar("T")
logger = logging.getLogger(__name__)
HELLO = 10.0  # seconds within which a client must send `join`
TICK = 0.2  # seconds between two checks of the round's deadlines
PULL = 0.5  # seconds between two requests for a round
HEARTBEAT = 20.0  # seconds between two heartbeats to SuperLink
ADDRESS_SOCKETS = 128  # maximum sockets per address
MESSAGES_PER_S, MESSAGES_BURST = 50.0, 400.0
SENT_FRAME = 1 << 17  # bytes: each socket buffers a few frames, also for a client that reads slowly
SHOWN_ROUNDS = 500  # maximum number of rounds that clients and the dashboard receive
SHOWN_SAMPLES = 20  # that many of the latest rounds include their sample text
JUDGED = 120.0  # seconds that a finished session waits for its last validation
MAX_QR_BYTES = 2000  # of the text of a QR code


class SuperLinkError(Exception):
    """Raised if a call to SuperLink fails; the gateway retries it."""


class SiteLike(Protocol):
    """The Flower operations that the gateway needs, as in `flower.Site`."""

    def connect(self) -> int: ...  # noqa: D102
    def heartbeat(self) -> Any: ...  # noqa: D102
    def pull(self) -> Any: ...  # noqa: D102
    def answer(self, task: bytes, arrays: Any, metrics: Any) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Bucket:
    """Token bucket that limits how many messages a client may send."""

    def __init__(self) -> None:
        self._left, self._at = MESSAGES_BURST, time.monotonic()

    def take(self) -> bool:
        """Takes one message from the bucket, or returns False if the bucket is empty."""
        now = time.monotonic()
        self._left = min(MESSAGES_BURST, self._left + (now - self._at) * MESSAGES_PER_S)
        self._at = now
        self._left -= 1
        return self._left >= 0


class Upload:
    """A partially received update, buffered in an anonymous temporary file: many clients send at once."""

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
        """Appends the next frame. Returns False if its size is not the announced one."""
        if not self.missing or len(frame) != min(protocol.FRAME, self.missing):
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
    """A connected socket of a member."""

    def __init__(self, socket: WebSocket, member: Member) -> None:
        self.socket, self.member = socket, member
        self.sent = ""  # id of the last round sent on this socket
        self.upload: Upload | None = None  # the update that the client announced last
        self.owed = 0  # announced bytes that the client has not sent yet
        self._lock = asyncio.Lock()  # keeps a message and its frames together

    @property
    def busy(self) -> bool:
        """True while a message is being sent, which takes long to a slow client."""
        return self._lock.locked()

    async def say(
        self, message: dict[str, Any], data: bytes | memoryview = b"", still: Callable[[], bool] = lambda: True
    ) -> None:
        """Sends a message and its frames, unless `still()` is false when earlier messages have been sent."""
        async with self._lock:
            if not still():
                return
            await self.socket.send_text(json.dumps(message, allow_nan=False))
            for frame in protocol.frames(data, SENT_FRAME):
                await self.socket.send_bytes(frame)
                self.member.bytes_out += len(frame)


class Gateway:
    """Serves the sockets of one site and runs its rounds in background tasks."""

    def __init__(self, files: Files, site: SiteLike, origins: tuple[str, ...] = ()) -> None:
        self.files, self.site, self.origins = files, site, origins
        self.invitations = files.invitations()
        self.rounds = Rounds(files, self.invitations)
        self.session = self.rounds.session
        self.clients: set[Client] = set()
        self.ended = False
        self.failed = False
        self.on_failure: Callable[[], None] = lambda: None  # called when a background task has failed
        self._uploads: dict[str, Upload] = {}  # unfinished uploads, by the hash of the member's key
        self._sockets: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._turning = asyncio.Lock()  # held while a round is opened, or closed and settled
        self._decoding = asyncio.Lock()  # one at a time: decoding takes several times the parameters' memory
        self._noted = 0.0
        self._done_at = 0.0

    # -- rounds -----------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self, _app: Any = None) -> AsyncIterator[None]:
        """Runs rounds until the context exits."""
        tasks = [asyncio.create_task(self._vital(work)) for work in (self._flower, self._clock, self._news)]
        try:
            yield
        finally:
            for task in [*tasks, *self._tasks]:
                task.cancel()
            await asyncio.gather(*tasks, *self._tasks, return_exceptions=True)
            self.site.close()

    async def _vital(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs a task that the session needs. If the task fails, ends the process, which is then restarted."""
        try:
            await work()
        except Exception:
            logger.critical("%s failed; the gateway ends", work.__name__.strip("_"), exc_info=True)
            self.failed = True
            self.on_failure()

    async def _flower(self) -> None:
        """Pulls rounds from Flower and answers them. Reconnects after an error of SuperLink."""
        connected, beat = False, 0.0
        while True:
            try:
                if not connected:
                    await self._superlink(self.site.connect)
                    connected = True
                if time.monotonic() - beat > HEARTBEAT:
                    await self._superlink(self.site.heartbeat)
                    beat = time.monotonic()
                await self._answer()
                task = await self._superlink(self.site.pull)
                if task is not None:
                    await self._begin(task)
                    continue
            except (SuperLinkError, OSError) as error:  # OSError: such as a full disk
                logger.info("%s", quoted(error, 300))
                connected, beat = False, 0.0
                await asyncio.sleep(2 * PULL)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), PULL)
            self._wake.clear()

    async def _superlink(self, call: Callable[..., T], *args: Any) -> T:
        """Calls SuperLink in a thread. Raises RunOver, and SuperLinkError for any other error of Flower's client."""
        try:
            return await asyncio.to_thread(call, *args)
        except RunOver:
            raise
        except Exception as error:  # Flower's client has no common exception class
            raise SuperLinkError(f"SuperLink: {type(error).__name__}: {error}") from error

    async def _begin(self, task: Any) -> None:
        try:
            number = int(task.config["round"])
            parameters = task.arrays["parameters"]
            if parameters.shape != (self.session.parameters,):
                raise ValueError(f"it has parameters of shape {parameters.shape}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            logger.error("a task of SuperLink is not a round: %s", quoted(error, 300))
            return
        if number <= self.files.round_of():  # it was requested before this gateway was restarted
            return
        async with self._turning:
            attempt = int(task.config.get("attempt", 0))
            round_ = await asyncio.to_thread(self.rounds.asked_for, task.message, number, parameters, attempt)
            if round_ is not self.rounds.open:
                logger.info("round %d is open", number)
                self.rounds.open = round_
                self._uploads.clear()  # before the next await: then clients may send frames of this round
                for client in self.clients:
                    client.sent = ""
            await asyncio.to_thread(self.rounds.keep_open)
        self._offer_all()

    async def _answer(self) -> None:
        round_ = self.rounds.open
        if round_ is None or not round_.settled or round_.task == b"":
            return
        reply = await asyncio.to_thread(self.rounds.reply)
        with contextlib.suppress(RunOver):
            await self._superlink(self.site.answer, reply.task, {"updates": reply.updates}, reply.metrics)
        if round_.task == reply.task:
            round_.task = b""  # answered; a repeated request has a new task
        logger.info("round %d is answered", round_.number)

    async def _clock(self) -> None:
        paused = False
        while True:
            await asyncio.sleep(TICK)
            try:
                paused, before = self.files.paused, paused
                if before and not paused:
                    self._offer_all()
                async with self._turning:
                    await self._tick()
            except OSError as error:  # such as a full disk
                logger.error("the round cannot be closed: %s", error)
                await asyncio.sleep(10 * TICK)

    async def _tick(self) -> None:
        """Advances the round: wraps it up, or records and settles a closed one, retrying after a failure."""
        due, round_ = self.rounds.tick(), self.rounds.open
        if due == "wrap_up" and round_ is not None:
            await self._tell({"type": "wrap_up", "attempt": round_.id})
        elif round_ is not None and round_.closed and not round_.settled:
            self._uploads.clear()
            if round_.updates:
                await asyncio.to_thread(self.files.note, self.rounds.figures())
            await asyncio.to_thread(self.rounds.settle)
            self._wake.set()

    async def _news(self) -> None:
        """Sends new lines of `rounds.jsonl`, the state and the session's end to all clients, once a second."""
        while True:
            await asyncio.sleep(1)
            try:
                await self._report()
            except OSError as error:  # such as no free descriptor
                logger.error("the clients cannot be updated: %s", error)

    async def _report(self) -> None:
        path = self.files.folder / ROUNDS
        changed = path.stat().st_mtime if path.exists() else 0.0
        if changed != self._noted:
            notes = await asyncio.to_thread(self.files.notes)
            self._noted = changed
            await self._tell({"type": "figures", "rounds": [_shown(note) for note in notes[-2:]]})
        state = {"type": "state", **self._state()}
        for client in [client for client in self.clients if not client.busy]:
            self._spawn(client.say(state))
        ended = (self.files.folder / ENDED).exists()
        if not self.ended and (ended or await asyncio.to_thread(self._all_done)):
            self.ended = True
            why = "the host ended the session" if ended else "all rounds are done"
            await self._tell({"type": "closed", "why": why})

    def _all_done(self) -> bool:
        """True if the last round is done and its validation was sent, or is more than `JUDGED` seconds late."""
        if self.files.round_of() < self.session.rounds:
            return False
        self._done_at = self._done_at or time.monotonic()
        judged = any(note["round"] == self.session.rounds and "step" in note for note in self.files.notes())
        return judged or time.monotonic() - self._done_at > JUDGED

    def _state(self) -> dict[str, Any]:
        status = self.rounds.status()
        shown = ("number", "name", "kind", "step", "loss", "tokens_per_s", "connections", "said", "aside")
        members = [{k: m[k] for k in shown} for m in status["members"]]
        return {"round": status["round"], "done": status["done"], "paused": status["paused"], "members": members}

    def _spawn(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except (WebSocketDisconnect, RuntimeError):  # the client has disconnected
                pass
            except Exception:  # affects this client only
                logger.exception("sending to a client failed")

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, message: dict[str, Any]) -> None:
        for client in list(self.clients):
            self._spawn(client.say(message))

    def _offer_all(self) -> None:
        for client in list(self.clients):
            self._spawn(self._offer(client))

    async def _offer(self, client: Client, again: bool = False) -> None:
        message = self.rounds.offer(client.member)
        if message is not None and self.rounds.open is not None and (again or client.sent != message["attempt"]):
            client.sent = message["attempt"]
            weights = np.asarray(self.rounds.open.parameters, "<f4")  # one copy for all clients
            await client.say(message, weights.data.cast("B"), lambda: client.sent == message["attempt"])

    # -- sockets ----------------------------------------------------------------------------------------------------

    async def socket(self, socket: WebSocket) -> None:
        """Serves a client's socket from its `join` until it closes."""
        address = client_network(socket.client.host if socket.client else "")
        if not self._origin_fits(socket) or self._sockets[address] >= ADDRESS_SOCKETS:
            await socket.close(1008)
            return
        await socket.accept()
        self._sockets[address] += 1
        client = None
        try:
            admitted = await self._admitted(socket)
            if admitted is not None:
                client, key = Client(socket, admitted[0]), admitted[1]
                self.rounds.connected(client.member)
                await self._welcome(client, key)
                await self._listen(client)
        except (WebSocketDisconnect, RuntimeError, asyncio.TimeoutError):
            pass
        except OSError as error:  # such as a full disk
            logger.error("a client's message cannot be stored: %s", error)
        finally:
            self._sockets[address] -= 1
            if client is not None:
                self.clients.discard(client)
                self.rounds.disconnected(client.member)

    def _origin_fits(self, socket: WebSocket) -> bool:
        """True if Origin is same-origin, on the allow-list, or absent (programs other than browsers)."""
        origin = socket.headers.get("origin")
        if origin is None or origin in self.origins:
            return True
        try:
            return urlsplit(origin).netloc == socket.headers.get("host")
        except ValueError:  # not a valid URL
            return False

    async def _admitted(self, socket: WebSocket) -> tuple[Member, str] | None:
        message = await asyncio.wait_for(socket.receive(), HELLO)
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")  # absent in a binary message
        try:
            said = protocol.parsed(text[: protocol.MOST_TEXT]) if text else None
            if not isinstance(said, Join):
                raise GlgptError("the first message must be join")
            admitted = self.rounds.admit(said)
            self._turn_out_unwanted()  # the member that had the seat
            return admitted
        except GlgptError as error:
            await socket.close(protocol.NO_TOKEN, protocol.close_reason(str(error)))
        except Refused as refused:
            await socket.close(refused.code, protocol.close_reason(str(refused)))
        return None

    def _unwanted(self, member: Member) -> bool:
        """True if the member must not be connected."""
        return member.barred or not self.rounds.seated(member)

    async def _turn_out(self, client: Client) -> None:
        """Closes the socket of a member that must not be connected, with the reason."""
        if not self.rounds.seated(client.member):
            code, why = protocol.FULL, "this device lost its place to another one: it sent no update for several rounds"
        elif client.member.aside == REMOVED:
            code, why = protocol.REMOVED, "the host removed this device"
        else:
            code, why = protocol.NO_TOKEN, client.member.aside
        await client.socket.close(code, why)

    def _turn_out_unwanted(self) -> None:
        """Closes the sockets of all members that must not be connected, and discards their unfinished uploads."""
        for client in [client for client in self.clients if self._unwanted(client.member)]:
            self.clients.discard(client)
            self._spawn(self._turn_out(client))
        wanted = {member.key for member in self.rounds.members.values() if not member.barred}
        for key in self._uploads.keys() - wanted:
            del self._uploads[key]

    async def _welcome(self, client: Client, key: str) -> None:
        member = client.member
        notes = await asyncio.to_thread(self.files.notes)
        welcome = {"type": "welcome", "member": member.number, "resume": key, "name": member.name}
        rounds = [_shown(note) for note in notes[-SHOWN_ROUNDS:]]
        for note in rounds[:-SHOWN_SAMPLES]:
            note.pop("sample", None)
        await client.say(welcome | {"rounds": rounds, "aside": member.aside, **self._state()})
        self.clients.add(client)  # only now: the welcome must be the first message
        if self._unwanted(member):  # became so during the welcome
            await self._turn_out(client)
            return
        if self.ended:
            await client.say({"type": "closed", "why": "all rounds are done"})
        self._spawn(self._offer(client))  # in a task, so that the socket is read at the same time

    async def _listen(self, client: Client) -> None:
        bucket = Bucket()
        while True:
            message = await client.socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            text, data = message.get("text"), message.get("bytes")
            client.member.bytes_in += len(text or data or b"")
            if not bucket.take() or len(text or "") > protocol.MOST_TEXT:
                await client.socket.close(protocol.TOO_MUCH, "too many messages, or a message that is too long")
                return
            if self._unwanted(client.member):
                await self._turn_out(client)
                return
            if data is not None:
                if not await self._frame(client, data):
                    await client.socket.close(protocol.TOO_MUCH, "data that no update announced")
                    return
                del message, data  # do not hold a frame for every socket while waiting
                continue
            try:
                said = protocol.parsed(text or "")
            except GlgptError as error:
                await client.say({"type": "rejected", "why": str(error)})
                continue
            await self._heed(client, said)

    async def _heed(self, client: Client, said: Join | Update | Progress | Ping) -> None:
        if isinstance(said, Update):
            await self._announced(client, said)
        elif isinstance(said, Progress):
            client.member.step, client.member.tokens_per_s = said.step, said.tokens_per_s
            client.member.loss = said.loss if said.loss is not None else client.member.loss
        elif isinstance(said, Ping):
            client.member.ping_ms = said.ms
            await client.say({"type": "pong", "n": said.n})

    async def _announced(self, client: Client, update: Update) -> None:
        """Answers an announced update with the number of frames already received, perhaps on an earlier socket."""
        member = client.member
        try:
            self.rounds.check(member, update)
        except Rejected as rejected:
            self._uploads.pop(member.key, None)
            await self._reject(client, rejected, update)
            return
        upload = self._uploads.get(member.key)
        if upload is None or upload.update != update:
            upload = self._uploads[member.key] = Upload(update, self.rounds.spool)
        if upload.complete:  # its socket closed after the last frame, before the update was accepted
            del self._uploads[member.key]
            await self._finish(client, upload)
            return
        client.upload = upload
        client.owed = min(2 * update.bytes, client.owed + upload.missing)  # an update may be announced twice
        await client.say({"type": "ready", "attempt": update.attempt, "have": upload.frames})

    async def _frame(self, client: Client, data: bytes) -> bool:
        """Accepts a frame of the update that this socket announced. Returns False for any other frame."""
        upload, key = client.upload, client.member.key
        client.owed -= len(data)
        if upload is None or not data or client.owed < 0:
            return False
        if self._uploads.get(key) is not upload:  # the upload was rejected or accepted in between
            return True
        if not upload.add(data):
            return False
        await client.say({"type": "ack", "attempt": upload.update.attempt, "have": upload.frames})
        if upload.complete and self._uploads.get(key) is upload:  # else another socket of the member has finished it
            del self._uploads[key]
            await self._finish(client, upload)
        return True

    async def _finish(self, client: Client, upload: Upload) -> None:
        member, update, round_ = client.member, upload.update, self.rounds.open
        try:
            self.rounds.check(member, update)
            assert round_ is not None
            before = round_.parameters
            try:
                async with self._decoding:
                    after, norm = await asyncio.to_thread(lambda: self.rounds.decoded(update, upload.data(), before))
            except GlgptError as error:
                raise self.rounds.faulty(member, str(error)) from None
            self.rounds.accept(member, update, after, norm)
        except Rejected as rejected:
            await self._reject(client, rejected, update)
            return
        metrics.UPDATES.labels("accepted").inc()
        await client.say({"type": "accepted", "attempt": update.attempt, "norm": norm})

    async def _reject(self, client: Client, rejected: Rejected, update: Update) -> None:
        """Sends the reason. After a stale update, sends the current weights too."""
        metrics.UPDATES.labels("rejected").inc()
        message = {"type": "rejected", "attempt": update.attempt, "why": str(rejected), "aside": client.member.aside}
        await client.say(message)
        if rejected.stale:
            await self._offer(client, again=True)

    # -- REST -------------------------------------------------------------------------------------------------------

    def routes(self) -> list[BaseRoute]:
        """Returns all routes of the gateway."""
        host: Callable[..., Any] = self._for_host
        routes: list[BaseRoute] = [
            WebSocketRoute("/v1/socket", self.socket),
            Route("/health", self.health),
            Route("/v1/session", self._for_members(self.about)),
            Route("/v1/session/tokenizer", self._for_members(self.tokenizer)),
            Route("/v1/session/text", self._for_members(self.text)),
            Route("/v1/session", host(self.end), methods=["DELETE"]),
            Route("/v1/status", host(self.status)),
            Route("/v1/pause", host(self.pause), methods=["POST"]),
            Route("/v1/invitations", host(self.invite), methods=["POST"]),
            Route("/v1/invitations", host(self.invited), methods=["GET"]),
            Route("/v1/invitations/{digest}", host(self.revoke), methods=["DELETE"]),
            Route("/v1/members/{number:int}", host(self.remove), methods=["DELETE"]),
            Route("/v1/model", host(self.model)),
            Route("/v1/qr", host(self.qr), methods=["POST"]),
            Route("/v1/host/token", host(self.host_token), methods=["POST"]),
            Route("/v1/host/link", host(self.host_link), methods=["POST"]),
        ]
        if self._has_page:
            routes.append(Mount("/train", PageFiles(directory=str(self.files.page), html=True)))
        return [*routes, _dashboard()]

    @property
    def _has_page(self) -> bool:
        """True if browsers can join with an exported page."""
        return (self.files.page / "index.html").is_file()

    def application(self) -> Any:
        """Returns the ASGI application."""
        return Headers(Starlette(routes=self.routes(), lifespan=self.running))

    def _for_host(self, work: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                self.invitations.check(_bearer(request), *HOST_KINDS)
            except GlgptError:
                return JSONResponse({"error": "the host's token is required"}, 401)
            return await work(request)

        return guarded

    def _for_members(self, work: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            token = _bearer(request)
            try:
                self.invitations.check(token)
            except GlgptError:
                if not self.rounds.knows(token):
                    return JSONResponse({"error": "an invitation is required"}, 401)
            return await work(request)

        return guarded

    async def health(self, _: Request) -> Response:
        """Answers a health check: 503 once a task of the gateway has failed."""
        return JSONResponse({"status": "failed" if self.failed else "ok"}, 503 if self.failed else 200)

    async def about(self, _: Request) -> Response:
        """Sends what a client needs to train: the session, the shapes and the size of the text."""
        session = self.session
        ids = np.load(self.files.ids, mmap_mode="r")
        return JSONResponse(
            session.model_dump()
            | {
                "shapes": [[name, list(shape)] for name, shape in session.shapes().items()],
                "ids": {"dtype": str(ids.dtype), "count": len(ids)},
            }
        )

    async def tokenizer(self, _: Request) -> Response:
        """Sends the tokenizer's files by name."""
        return JSONResponse(self.files.tokenizer_files())

    async def text(self, _: Request) -> Response:
        """Sends the text's token ids as little-endian uint32."""
        ids = await asyncio.to_thread(lambda: np.load(self.files.ids).astype("<u4").tobytes())
        return Response(ids, media_type="application/octet-stream")

    async def status(self, _: Request) -> Response:
        """Sends what the dashboard shows."""
        notes = await asyncio.to_thread(self.files.notes)
        more = {"page": self._has_page, "history": notes[-SHOWN_ROUNDS:]}
        return JSONResponse(self.rounds.status() | more)

    async def pause(self, request: Request) -> Response:
        """Pauses or resumes: `{"paused": true}`. Clients finish the round that they are training."""
        paused = (await _json(request)).get("paused")
        if not isinstance(paused, bool):
            return JSONResponse({"error": "paused must be true or false"}, 400)
        self.files.pause(paused)
        return JSONResponse({"paused": paused})

    async def end(self, _: Request) -> Response:
        """Ends the session without starting another round."""
        (self.files.folder / ENDED).touch()
        return JSONResponse({"ended": True})

    async def invite(self, request: Request) -> Response:
        """Creates an invitation: `{"uses": 1, "hours": 24}`, both optional."""
        asked = await _json(request)
        uses, hours = asked.get("uses"), asked.get("hours", LIFE / 3600)
        good = (uses is None or (isinstance(uses, int) and uses > 0)) and isinstance(hours, (int, float)) and hours > 0
        if not good:
            return JSONResponse({"error": "uses must be a positive integer and hours a positive number"}, 400)
        token = self.invitations.create(hours * 3600, uses)
        return JSONResponse({"token": token, "digest": digest(token)}, 201)

    async def invited(self, _: Request) -> Response:
        """Lists all invitations by their hashes."""
        return JSONResponse({"invitations": self.invitations.listed()})

    async def revoke(self, request: Request) -> Response:
        """Revokes an invitation and disconnects the members that joined with it."""
        members = self.rounds.revoke(request.path_params["digest"])
        self._turn_out_unwanted()
        if members is None:
            return JSONResponse({"revoked": False}, 404)
        return JSONResponse({"revoked": True, "members": [member.number for member in members]})

    async def remove(self, request: Request) -> Response:
        """Removes a device permanently."""
        number = request.path_params["number"]
        if not self.rounds.remove(number):
            return JSONResponse({"error": "unknown device"}, 404)
        self._turn_out_unwanted()
        return JSONResponse({"removed": number})

    async def host_token(self, request: Request) -> Response:
        """Exchanges the one-time token of a dashboard's link for one that a tab stores."""
        return JSONResponse({"token": self.invitations.exchange(_bearer(request))}, 201)

    async def host_link(self, request: Request) -> Response:
        """Creates a token for another dashboard link. `{"rotate": true}` revokes the tokens of all other hosts."""
        if (await _json(request)).get("rotate") is True:
            self.invitations.turn_out_hosts(but=_bearer(request))
        return JSONResponse({"token": self.invitations.create(kind=HOST_LINK)}, 201)

    async def model(self, _: Request) -> Response:
        """Sends the current model as a zip of the folder that `glgpt generate --model` takes."""
        path = await asyncio.to_thread(_zipped, self.files)
        return FileResponse(path, filename="model.zip", background=BackgroundTask(path.unlink))

    async def qr(self, request: Request) -> Response:
        """Sends `{"text": "https://…"}` as a QR code: a string per row, with "1" for dark modules."""
        text = (await _json(request)).get("text")
        if not isinstance(text, str) or not 0 < len(text.encode(errors="replace")) <= MAX_QR_BYTES:
            return JSONResponse({"error": f"text must be a string of 1 to {MAX_QR_BYTES} bytes"}, 400)
        code = await asyncio.to_thread(segno.make_qr, text, error="l")
        return JSONResponse({"rows": ["".join("1" if module else "0" for module in row) for row in code.matrix]})


def _dashboard() -> BaseRoute:
    """Returns the dashboard's route; if it is not built, the route sends the reason as text."""
    try:
        return Mount("/", PageFiles(directory=str(built_dashboard()), html=True))
    except GlgptError as error:
        return Route("/", PlainTextResponse(f"{error}\n", 503))


def _shown(note: dict[str, Any]) -> dict[str, Any]:
    """Returns a round's line without its devices: with them, 500 rounds would be megabytes."""
    return {name: value for name, value in note.items() if name != "devices"}


def _zipped(files: Files) -> Path:
    """Writes a checkpoint's files to a temporary zip, uncompressed because weights hardly compress."""
    with tempfile.NamedTemporaryFile(suffix=".zip", delete=False) as found, zipfile.ZipFile(found, "w") as archive:
        for name in ("config.json", "model.safetensors", *TOKENIZER_FILES):
            if (files.run / name).is_file():
                archive.write(files.run / name, f"model/{name}")
    return Path(found.name)


def _bearer(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else ""


async def _json(request: Request) -> dict[str, Any]:
    with contextlib.suppress(ValueError, ClientDisconnect):
        body = await request.body()
        found = json.loads(body[: protocol.MOST_TEXT] or b"{}")
        if isinstance(found, dict):
            return found
    return {}


def main() -> None:
    """Serves one site until a signal ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--site", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT")
    parser.add_argument("--tls-cert")
    parser.add_argument("--tls-key")
    parser.add_argument("--origin", action="append", default=[])
    parser.add_argument("--proxied", action="store_true", help="connections from this machine come from a proxy")
    parser.add_argument("--metrics", nargs=2, metavar=("HOST", "PORT"), default=())
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", default="text")
    args = parser.parse_args()
    log_to_stderr(args.log_level, args.log_format)
    from glgpt.federation.flower import Site

    files = Files(args.run, args.site)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor ends it

    proxies = frozenset(("127.0.0.1", "::1") if args.proxied else ())
    limits = Limits(total=max(RESERVED, available_descriptors() - files.session().members), exempt=proxies)
    listener = bound_socket(args.host, args.port, "--port", limits)

    async def serve() -> bool:
        gateway = Gateway(files, Site(args.superlink, files.node_key, files.node_number), tuple(args.origin))
        tls = {"ssl_certfile": args.tls_cert, "ssl_keyfile": args.tls_key}
        server = uvicorn.Server(configuration(gateway.application(), listener.connections, **tls))
        gateway.on_failure = partial(setattr, server, "should_exit", True)
        metrics.observe(gateway)
        await server.serve(sockets=[listener])
        return gateway.failed

    with metrics_server(args.metrics[0], int(args.metrics[1])) if args.metrics else contextlib.nullcontext():
        failed = asyncio.run(serve())
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
