"""Receives the messages of members over WebSockets, and sends them the messages of the gateway."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect

from glgpt.errors import GlgptError
from glgpt.federation import protocol
from glgpt.federation.gateway.connection import Bucket, Client, Upload
from glgpt.federation.operation import metrics
from glgpt.federation.protocol import Join, Ping, Progress, Update
from glgpt.federation.replies import GatewayMessage, MemberRow, RoundFigures, State
from glgpt.federation.rounds.members import REMOVED, Member, Refused
from glgpt.federation.rounds.rounds import Rounds
from glgpt.federation.rounds.updates import Rejected
from glgpt.federation.session import Files
from glgpt.system.network import client_network

logger = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 10.0  # seconds within which a client must send `join`
MAX_ADDRESS_SOCKETS = 128  # maximum number of sockets per IPv4 address or IPv6 /64 network
MAX_SHOWN_ROUNDS = 500  # maximum number of rounds that clients and the dashboard receive
MAX_SHOWN_SAMPLES = 20  # number of latest rounds whose generated sample text clients receive


class Sockets:
    """Serves the sockets of a site's members."""

    def __init__(self, files: Files, rounds: Rounds, origins: tuple[str, ...] = ()) -> None:
        self.files, self.rounds, self.origins = files, rounds, origins
        self.clients: set[Client] = set()
        self.ended = False
        self._uploads: dict[str, Upload] = {}  # unfinished uploads, by the hash of the member's key
        self._of_address: Counter[str] = Counter()  # number of open sockets, by `client_network`
        self._tasks: set[asyncio.Task[None]] = set()
        # Held while an update is decoded, because decoding takes several times the memory of the parameters
        self._decoding = asyncio.Lock()

    async def close(self) -> None:
        """Cancels all messages that are being sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- to all clients ---------------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Discards the uploads of the previous round. Marks the new round as not sent to any client."""
        self.discard_uploads()
        for client in self.clients:
            client.sent = ""

    def discard_uploads(self) -> None:
        """Discards all unfinished uploads."""
        self._uploads.clear()

    def broadcast_state(self) -> None:
        """Sends the session's state to the clients to which no other message is being sent."""
        state: GatewayMessage = {"type": "state", **self._state()}
        for client in [client for client in self.clients if not client.busy]:
            self._spawn(client.say(state))

    def end(self, why: str) -> None:
        """Reports to all clients that the session has ended."""
        self.ended = True
        self.broadcast({"type": "closed", "why": why})

    def _state(self) -> State:
        status = self.rounds.status()
        members: Any = [{k: m[k] for k in MemberRow.__annotations__} for m in status["members"]]  # type: ignore[literal-required]
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

    def broadcast(self, message: GatewayMessage) -> None:
        """Sends a message to all clients."""
        for client in list(self.clients):
            self._spawn(client.say(message))

    def offer_all(self) -> None:
        """Sends the open round to the clients that do not have it."""
        for client in list(self.clients):
            self._spawn(self._offer(client))

    async def _offer(self, client: Client, again: bool = False) -> None:
        message = self.rounds.offer(client.member)
        if message is not None and self.rounds.open is not None and (again or client.sent != message["attempt"]):
            client.sent = message["attempt"]
            weights = np.asarray(self.rounds.open.parameters, "<f4")  # one copy for all clients
            await client.say(message, weights.data.cast("B"), lambda: client.sent == message["attempt"])

    # -- one client ------------------------------------------------------------------------------------------------

    async def socket(self, socket: WebSocket) -> None:
        """Serves a client's socket from the client's `join` until the socket closes."""
        address = client_network(socket.client.host if socket.client else "")
        if not self._origin_fits(socket) or self._of_address[address] >= MAX_ADDRESS_SOCKETS:
            await socket.close(1008)
            return
        await socket.accept()
        self._of_address[address] += 1
        client = None
        try:
            admitted = await self._admitted(socket)
            if admitted is not None:
                client, key = Client(socket, admitted[0]), admitted[1]
                self.rounds.members.connected(client.member)
                await self._welcome(client, key)
                await self._listen(client)
        except (WebSocketDisconnect, RuntimeError, asyncio.TimeoutError):
            pass
        except OSError as error:  # such as a full disk
            logger.error("a client's message cannot be stored: %s", error)
        finally:
            self._of_address[address] -= 1
            if client is not None:
                self.clients.discard(client)
                self.rounds.members.disconnected(client.member)

    def _origin_fits(self, socket: WebSocket) -> bool:
        """True if `Origin`, a header that only browsers send, names this gateway or one of `origins`, or is missing."""
        origin = socket.headers.get("origin")
        if origin is None or origin in self.origins:
            return True
        try:
            return urlsplit(origin).netloc == socket.headers.get("host")
        except ValueError:  # not a valid URL
            return False

    async def _admitted(self, socket: WebSocket) -> tuple[Member, str] | None:
        message = await asyncio.wait_for(socket.receive(), JOIN_TIMEOUT_S)
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")  # None for a binary message
        try:
            said = protocol.parsed(text[: protocol.MAX_TEXT_BYTES]) if text else None
            if not isinstance(said, Join):
                raise GlgptError("the first message must be join")
            admitted = self.rounds.members.admit(said)
            self.turn_out_unwanted()  # disconnects the member whose seat the new member took, if any
            return admitted
        except GlgptError as error:
            await socket.close(protocol.NO_TOKEN, protocol.close_reason(str(error)))
        except Refused as refused:
            await socket.close(refused.code, protocol.close_reason(str(refused)))
        return None

    def _unwanted(self, member: Member) -> bool:
        """True if the member must not be connected."""
        return member.barred or not self.rounds.members.seated(member)

    async def _turn_out(self, client: Client) -> None:
        """Closes the socket of a member that must not be connected. The close message has the reason."""
        if not self.rounds.members.seated(client.member):
            why = "this device was offline, set aside or had no accepted update, and lost its place to another one"
            code = protocol.FULL
        elif client.member.aside == REMOVED:
            code, why = protocol.REMOVED, "the host removed this device"
        else:
            code, why = protocol.NO_TOKEN, client.member.aside
        await client.socket.close(code, why)

    def turn_out_unwanted(self) -> None:
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
        rounds = [without_devices(note) for note in notes[-MAX_SHOWN_ROUNDS:]]
        for note in rounds[:-MAX_SHOWN_SAMPLES]:
            note.pop("sample", None)
        await client.say(
            {
                "type": "welcome",
                "member": member.number,
                "resume": key,
                "name": member.name,
                "rounds": rounds,
                "aside": member.aside,
                **self._state(),
            }
        )
        self.clients.add(client)  # only now: the welcome must be the first message
        if self._unwanted(member):  # removed or replaced during the welcome
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
            if not bucket.take() or len(text or "") > protocol.MAX_TEXT_BYTES:
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
        """Rejects an announced update, or reports the number of its frames that were already received.

        The member may have sent these frames on an earlier socket. If no frame is missing, finishes the update instead.
        """
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
        if upload.complete:  # an earlier socket closed after the last frame, before the update was accepted
            del self._uploads[member.key]
            await self._finish(client, upload)
            return
        client.upload = upload
        # A client that announces an update twice may send its frames twice.
        client.owed = min(2 * update.bytes, client.owed + upload.missing)
        await client.say({"type": "ready", "attempt": update.attempt, "have": upload.frames})

    async def _frame(self, client: Client, data: bytes) -> bool:
        """Stores a frame of the update that was announced on this socket. Returns False for any other data.

        Ignores the frame and returns True if the update was completed or discarded since its announcement.
        """
        upload, key = client.upload, client.member.key
        client.owed -= len(data)
        if upload is None or not data or client.owed < 0:
            return False
        if self._uploads.get(key) is not upload:  # the upload was finished or discarded since the announcement
            return True
        if not upload.add(data):
            return False
        await client.say({"type": "ack", "attempt": upload.update.attempt, "have": upload.frames})
        if upload.complete and self._uploads.get(key) is upload:  # if not, another socket of the member finished it
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
                raise self.rounds.members.strike(member, str(error)) from None
            self.rounds.accept(member, update, after, norm)
        except Rejected as rejected:
            await self._reject(client, rejected, update)
            return
        metrics.UPDATES.labels("accepted").inc()
        await client.say({"type": "accepted", "attempt": update.attempt, "norm": norm})

    async def _reject(self, client: Client, rejected: Rejected, update: Update) -> None:
        """Sends the reason why an update is rejected. If the update was stale, also sends the open round again."""
        metrics.UPDATES.labels("rejected").inc()
        await client.say(
            {"type": "rejected", "attempt": update.attempt, "why": str(rejected), "aside": client.member.aside}
        )
        if rejected.stale:
            await self._offer(client, again=True)


def without_devices(note: dict[str, Any]) -> RoundFigures:
    """Returns a line of `rounds.jsonl` without its list of devices. With devices, 500 rounds would take megabytes."""
    figures: Any = {name: value for name, value in note.items() if name != "devices"}
    return cast("RoundFigures", figures)
