"""Answers the HTTP calls of members, of the host and of its dashboard, and serves the page's files."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import zipfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import segno
from numpy.typing import NDArray
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from glgpt.errors import GlgptError
from glgpt.federation import protocol
from glgpt.federation.gateway.service import Gateway
from glgpt.federation.gateway.sockets import MAX_SHOWN_ROUNDS
from glgpt.federation.invitations import HOST_KINDS, HOST_LINK, MEMBER_LIFE_S, digest
from glgpt.federation.replies import InvitationList, NewInvitation, QrCode, Status, TokenAnswer
from glgpt.federation.session import ENDED, Files
from glgpt.page.built import built_dashboard
from glgpt.page.serve import Files as PageFiles
from glgpt.page.serve import Headers
from glgpt.system.network import client_network
from glgpt.text.tokenizer_training import FILES as TOKENIZER_FILES

MAX_INVITATION_HOURS = 366 * 24  # maximum hours for which an invitation is valid
MAX_QR_BYTES = 2000  # maximum bytes of the text of a QR code
MAX_TEXTS = 8  # maximum number of copies of the text that are sent to one client network at once
MAX_TEXT_REQUESTS = 64  # maximum open requests for the text per client network; a classroom may be one network
TEXT_BLOCK = 1 << 18  # bytes of the text's token ids that each answer holds in memory


def application(gateway: Gateway) -> Any:
    """Returns the ASGI application of a gateway. The gateway's rounds run during the application's lifespan."""
    return Headers(Starlette(routes=Routes(gateway).routes(), lifespan=gateway.running))


class Routes:
    """Answers the HTTP calls of members and of the host."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway, self.files, self.rounds = gateway, gateway.files, gateway.rounds
        self.invitations = gateway.invitations
        self._texts: dict[str, _Texts] = {}  # open requests for the text, by client network

    def routes(self) -> list[BaseRoute]:
        """Returns all routes."""
        host: Callable[..., Any] = self._for_host
        routes: list[BaseRoute] = [
            WebSocketRoute("/v1/socket", self.gateway.sockets.socket),
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
                if not self.rounds.members.knows(token):
                    return JSONResponse({"error": "an invitation is required"}, 401)
            return await work(request)

        return guarded

    async def health(self, _: Request) -> Response:
        """Answers a health check, with status 503 if a background task of the gateway has failed."""
        return JSONResponse({"status": "failed" if self.gateway.failed else "ok"}, 503 if self.gateway.failed else 200)

    async def about(self, _: Request) -> Response:
        """Sends the session's terms, the parameters' shapes, and the number and data type of the text's token ids."""
        session = self.gateway.session
        ids = np.load(self.files.ids, mmap_mode="r")
        return JSONResponse(
            session.model_dump()
            | {
                "shapes": [[name, list(shape)] for name, shape in session.shapes().items()],
                "ids": {"dtype": str(ids.dtype), "count": len(ids)},
            }
        )

    async def tokenizer(self, _: Request) -> Response:
        """Sends the tokenizer's files, as an object with the contents of each file by the file's name."""
        return JSONResponse(self.files.tokenizer_files())

    async def text(self, request: Request) -> Response:
        """Sends the text's token ids as little-endian uint32, block by block from the file.

        A client network (see `client_network`) receives at most `MAX_TEXTS` copies at once; further requests wait. If
        `MAX_TEXT_REQUESTS` requests of the network are open or waiting, further requests receive status 429.
        """
        client = client_network(request.client.host if request.client else "")
        self._texts = {network: texts for network, texts in self._texts.items() if texts.open}
        texts = self._texts.setdefault(client, _Texts())
        if texts.open >= MAX_TEXT_REQUESTS:
            return JSONResponse({"error": f"{texts.open} requests for the text are open; wait for one to end"}, 429)
        return _Text(np.load(self.files.ids, mmap_mode="r"), texts)

    async def status(self, _: Request) -> Response:
        """Sends the session's state and the latest rounds, for the dashboard."""
        notes = await asyncio.to_thread(self.files.notes)
        shown: Any = notes[-MAX_SHOWN_ROUNDS:]
        status: Status = {**self.rounds.status(), "page": self._has_page, "history": shown}
        return JSONResponse(status)

    async def pause(self, request: Request) -> Response:
        """Pauses the session (`{"paused": true}`) or resumes it. Clients finish the round that they are training."""
        paused = (await _json(request)).get("paused")
        if not isinstance(paused, bool):
            return JSONResponse({"error": "paused must be true or false"}, 400)
        self.files.pause(paused)
        return JSONResponse({"paused": paused})

    async def end(self, _: Request) -> Response:
        """Ends the session: `serve` stops without finishing the open round."""
        (self.files.folder / ENDED).touch()
        return JSONResponse({"ended": True})

    async def invite(self, request: Request) -> Response:
        """Creates an invitation: `{"uses": 1, "hours": 24}`, both optional."""
        asked = await _json(request)
        uses, hours = asked.get("uses"), asked.get("hours", MEMBER_LIFE_S / 3600)
        good = uses is None or (isinstance(uses, int) and uses > 0)
        if not (good and isinstance(hours, (int, float)) and 0 < hours <= MAX_INVITATION_HOURS):
            why = f"uses must be a positive integer, and hours a positive number of at most {MAX_INVITATION_HOURS}"
            return JSONResponse({"error": why}, 400)
        token = self.invitations.create(hours * 3600, uses)
        return JSONResponse(NewInvitation(token=token, digest=digest(token)), 201)

    async def invited(self, _: Request) -> Response:
        """Lists the invitations of members and the tokens of the host; `digest` is the hash of each token."""
        return JSONResponse(InvitationList(invitations=self.invitations.listed()))

    async def revoke(self, request: Request) -> Response:
        """Revokes an invitation and disconnects the members that joined with it."""
        members = self.rounds.members.revoke(request.path_params["digest"])
        self.gateway.sockets.turn_out_unwanted()
        if members is None:
            return JSONResponse({"revoked": False}, 404)
        return JSONResponse({"revoked": True, "members": [member.number for member in members]})

    async def remove(self, request: Request) -> Response:
        """Removes a device permanently."""
        number = request.path_params["number"]
        if not self.rounds.members.remove(number):
            return JSONResponse({"error": "unknown device"}, 404)
        self.gateway.sockets.turn_out_unwanted()
        return JSONResponse({"removed": number})

    async def host_token(self, request: Request) -> Response:
        """Exchanges the one-time token of a dashboard's link for a token that the browser tab stores."""
        return JSONResponse(TokenAnswer(token=self.invitations.exchange(_bearer(request))), 201)

    async def host_link(self, request: Request) -> Response:
        """Creates a token for a link to the dashboard.

        `{"rotate": true}` first revokes the tokens of earlier links and of all dashboards, except the dashboard that
        sends the request.
        """
        if (await _json(request)).get("rotate") is True:
            self.invitations.turn_out_hosts(but=_bearer(request))
        return JSONResponse(TokenAnswer(token=self.invitations.create(kind=HOST_LINK)), 201)

    async def model(self, _: Request) -> Response:
        """Sends a zip file of the current model: a folder that `glgpt generate --model` can load."""
        path = await asyncio.to_thread(_zipped, self.files)
        return _TemporaryFile(path, filename="model.zip")

    async def qr(self, request: Request) -> Response:
        """Sends the QR code of the text in `{"text": "https://…"}`: a string per row, with "1" for dark modules."""
        text = (await _json(request)).get("text")
        if not isinstance(text, str) or not 0 < len(text.encode(errors="replace")) <= MAX_QR_BYTES:
            return JSONResponse({"error": f"text must be a string of 1 to {MAX_QR_BYTES} bytes"}, 400)
        code = await asyncio.to_thread(segno.make_qr, text, error="l")
        return JSONResponse(QrCode(rows=["".join("1" if module else "0" for module in row) for row in code.matrix]))


class _TemporaryFile(FileResponse):
    """Sends a file and deletes it, even if the client has disconnected or requests an invalid range."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            Path(self.path).unlink()


class _Texts:
    """One client network's open requests for the text."""

    def __init__(self) -> None:
        self.open = 0
        self.sending = asyncio.Semaphore(MAX_TEXTS)


class _Text(StreamingResponse):
    """Streams token ids, but first waits while `MAX_TEXTS` other copies are being sent to the client network."""

    def __init__(self, ids: NDArray[Any], texts: _Texts) -> None:
        super().__init__(_blocks(ids), 200, {"content-length": str(4 * len(ids))}, "application/octet-stream")
        self._texts = texts
        texts.open += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._texts.sending:
                await super().__call__(scope, receive, send)
        finally:
            self._texts.open -= 1


async def _blocks(ids: NDArray[Any]) -> AsyncIterator[bytes]:
    for at in range(0, len(ids), TEXT_BLOCK // 4):
        yield ids[at : at + TEXT_BLOCK // 4].astype("<u4").tobytes()
        await asyncio.sleep(0)


def _dashboard() -> BaseRoute:
    """Returns the dashboard's route. If the dashboard is not built, the route sends the reason as text."""
    try:
        return Mount("/", PageFiles(directory=str(built_dashboard()), html=True))
    except GlgptError as error:
        return Route("/", PlainTextResponse(f"{error}\n", 503))


def _zipped(files: Files) -> Path:
    """Writes the model's files to a temporary zip file, uncompressed because weights hardly compress.

    Returns the path of the zip file, which the caller must delete.
    """
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
        found = json.loads(body[: protocol.MAX_TEXT_BYTES] or b"{}")
        if isinstance(found, dict):
            return found
    return {}
