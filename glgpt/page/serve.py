"""Serves an exported folder over HTTP with Starlette and uvicorn; by default, only this machine can connect."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import functools
import hashlib
import os
import re
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from glgpt.errors import ArgumentError, FileError, quoted
from glgpt.page.connections import BACKLOG, Connections, Limits, Listener, http_protocol
from glgpt.system.network import LOOPBACK, in_address, is_address, own_names, reachable

PORT = 8042
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".html": "text/html; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
}  # other files are sent as application/octet-stream
COMPRESSED = (
    ".js",
    ".mjs",
    ".css",
    ".json",
    ".html",
    ".txt",
    ".svg",
    "/",
)  # endings of paths whose responses are compressed; other files, such as weights, would hardly shrink
HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cross-Origin-Resource-Policy": "same-origin",
}
POLICY = (
    "default-src 'self'; script-src 'self'{scripts}; style-src 'self'{styles}; connect-src 'self'; "
    "worker-src 'self' blob:; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
)
FRAMES = "frame-ancestors 'none'"  # always sent as a header: browsers ignore this directive in a meta element
META_POLICY = re.compile(rb"<meta[^>]+http-equiv=[\"']?content-security-policy", re.I)
MAX_HASHED_PAGE_BYTES = 256 << 20  # inline scripts and styles of larger pages are not hashed, so browsers block them


class Files(StaticFiles):
    """Serves the files of a folder, with the same media types on every system.

    Refuses listings of folders, and symbolic links that lead out of the folder.
    """

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Returns the file, or 404 if there is none or the name is invalid."""
        try:
            return await super().get_response(path, scope)
        except (OSError, ValueError):  # such as a name with a zero byte, or a file without permission to read
            raise HTTPException(404) from None

    policy = True  # Content-Security-Policy of HTML files: `page_policy` if True, only `FRAMES` if False

    def file_response(self, full_path: Any, stat_result: os.stat_result, scope: Scope, status_code: int = 200) -> Any:
        """Returns the file with its Content-Security-Policy and its media type from `TYPES` (not the system's list)."""
        if not os.access(full_path, os.R_OK):
            raise HTTPException(404)
        response = super().file_response(full_path, stat_result, scope, status_code)
        kind = TYPES.get(Path(full_path).suffix.lower(), "application/octet-stream")
        if "content-type" in response.headers:
            response.headers["content-type"] = kind
        policy = FRAMES
        if self.policy and kind.startswith("text/html"):
            policy = page_policy(str(full_path), stat_result.st_mtime_ns, stat_result.st_size)
        response.headers["content-security-policy"] = policy
        return response


@functools.lru_cache(maxsize=64)
def page_policy(path: str, _changed: int, size: int) -> str:
    """Returns the Content-Security-Policy of an HTML file, with the hashes of the file's inline scripts and styles.

    Style attributes cannot be allowed by a hash; if the page has any, the policy allows all style attributes. If the
    page has a policy in a meta element, returns only `FRAMES`, which is not valid in a meta element. `_changed` is the
    time of the file's last change: a changed file has another key in this function's cache.
    """
    data = Path(path).read_bytes() if size <= MAX_HASHED_PAGE_BYTES else b""
    if META_POLICY.search(data, 0, 1 << 16):
        return FRAMES
    scripts = (
        body
        for tag, body in re.findall(rb"<script\b([^>]*)>(.*?)</script", data, re.S | re.I)
        if not re.search(rb"\bsrc\s*=|type=[\"']?application/(?:octet-stream|json)", tag, re.I)
    )
    styles = re.findall(rb"<style\b[^>]*>(.*?)</style", data, re.S | re.I)
    attributes = "style-src-attr 'unsafe-inline'; " if re.search(rb"<[^>]*\sstyle\s*=", data) else ""
    return POLICY.format(scripts=_hashes(scripts), styles=_hashes(styles)) + attributes + FRAMES


def _hashes(texts: Any) -> str:
    return "".join(f" 'sha256-{base64.b64encode(hashlib.sha256(_lines(t)).digest()).decode()}'" for t in texts)


def _lines(text: bytes) -> bytes:
    """Normalises line endings as a browser's parser does."""
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


class Headers:
    """Middleware that adds `HEADERS` to every answer, including errors."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Handles a request."""

        async def send_more(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Content-Security-Policy", "default-src 'none'; " + FRAMES)
            await send(message)

        await self.app(scope, receive, send_more if scope["type"] == "http" else send)


class Compression:
    """Middleware that gzips texts for clients that accept gzip; weights and byte ranges are not compressed."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._gzip = GZipMiddleware(app, compresslevel=6)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Handles a request."""
        text = scope["type"] == "http" and scope["path"].lower().endswith(COMPRESSED)
        ranged = text and any(name == b"range" for name, _ in scope["headers"])
        await (self._gzip if text and not ranged else self.app)(scope, receive, send)


class Names:
    """Middleware that accepts only requests to IP addresses, `localhost`, names of this machine and names in `more`.

    If every name were accepted, another site could let its own name resolve to this machine's address; a page of that
    site could then read the served files (DNS rebinding). An IP address needs no resolution, so it is safe.
    """

    def __init__(self, app: Any, more: Collection[str] = ()) -> None:
        self.app = app
        self._names = {"localhost", *own_names(), *(name.lower().rstrip(".") for name in more)}

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Handles a request, or refuses it with 421."""
        named = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        if self.knows(named):
            await self.app(scope, receive, send)
            return
        text = (
            f"This server does not accept the host name {quoted(named)}. Open the server's IP address, or start the "
            "server with --allow-host NAME.\n"
        )
        await Response(text, 421, media_type="text/plain")(scope, receive, send)

    def knows(self, named: str) -> bool:
        """True if a Host header, with or without a port, has an accepted name or an IP address."""
        found = _HOST.fullmatch(named)
        host = (found[1] or found[2]).lower().rstrip(".") if found else ""
        return host in self._names or is_address(host)


_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]/@]+))(?::\d{1,5})?")


def application(folder: Path, *routes: BaseRoute, policy: bool = True, names: Collection[str] = ()) -> Any:
    """Returns an ASGI application that serves `routes`, and `folder` for all other paths.

    Without `policy`, the Content-Security-Policy of the folder's pages forbids only that other pages show them in
    frames. The application accepts requests for any IP address, this machine's names and `names`. Raises FileError for
    a folder without a page.
    """
    if not (folder / "index.html").is_file():
        name = quoted(folder, 300)
        raise FileError(f"{name} has no index.html; export a page with glgpt export --out {shlex.quote(name)}")
    files = Files(directory=str(folder), html=True, follow_symlink=False)
    files.policy = policy
    return Headers(Names(Compression(Starlette(routes=[*routes, Mount("/", files)])), names))


def bound_socket(host: str, port: int, option: str, limits: Limits | None = None) -> Listener:
    """Returns a socket that listens on a port of this machine; `limits` (None: the defaults) apply to its connections.

    Raises ArgumentError if the address or the port cannot be used; the message names `option`, which sets the port.
    """
    made = Listener(Connections(limits or Limits()), socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if not host:  # `bind` would take an empty host as all addresses
            raise socket.gaierror
        if sys.platform != "win32":  # on Windows, this option would let two servers share a port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except (OSError, OverflowError, TypeError, UnicodeError) as error:  # TypeError: a host with a zero byte
        made.close()
        no_host = isinstance(error, (socket.gaierror, TypeError, UnicodeError))
        if no_host or (isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL):
            shown = quoted(host) or "an empty host"
            raise ArgumentError(f"{shown} is not an address of this machine; 0.0.0.0 listens on all of them") from None
        why = error.strerror if isinstance(error, OSError) else "it must be from 0 to 65535"
        raise ArgumentError(f"port {port} cannot be used: {why}; choose another with {option}") from None
    return made


def settings(app: Any, connections: Connections, **more: Any) -> uvicorn.Config:
    """Returns uvicorn's settings: no log, lifespan events or WebSockets; `more` has settings that override these."""
    common: dict[str, Any] = {
        "http": http_protocol(connections),
        "backlog": BACKLOG,
        "ws": "none",
        "lifespan": "off",
        "loop": "asyncio",
        "log_config": None,
        "log_level": "critical",
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": 1,
    }
    return uvicorn.Config(app, **common | more)


class _Uvicorn(uvicorn.Server):
    """A uvicorn server that ends at the first signal, even with open connections.

    After the end, the signal's previous handler runs.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Records the signal and stops at once."""
        super().handle_exit(sig, frame)
        self.force_exit = True


class Server:
    """Serves an application on an address of this machine; the constructor binds the port (0: any free port).

    Raises ArgumentError for an address or a port that cannot be used.
    """

    def __init__(self, app: Any, port: int = PORT, host: str = LOOPBACK) -> None:
        self._socket = bound_socket(host, port, "--port")
        self.address = f"http://{in_address(reachable(host))}:{self._socket.getsockname()[1]}/"
        self._server = _Uvicorn(settings(app, self._socket.connections))

    def run(self) -> None:
        """Serves until a signal arrives, or until another thread calls `stop`."""
        asyncio.run(self._server.serve(sockets=[self._socket]))

    def stop(self) -> None:
        """Ends `run` without waiting for open connections."""
        self._server.should_exit = self._server.force_exit = True


@contextlib.contextmanager
def serving(app: Any, port: int = 0) -> Iterator[str]:
    """Serves an application in a thread until the `with` block ends; yields the address."""
    made = Server(app, port)
    thread = threading.Thread(target=made.run, daemon=True)
    thread.start()
    try:
        yield made.address
    finally:
        made.stop()
        thread.join()


def serve(
    folder: Path,
    port: int = PORT,
    host: str = LOOPBACK,
    names: Collection[str] = (),
    announce: Callable[[str], None] = print,
) -> None:
    """Serves a folder until a signal arrives; calls `announce` with the address at which clients reach it."""
    made = Server(application(folder, names=(*names, host)), port, host)
    announce(made.address)
    made.run()
