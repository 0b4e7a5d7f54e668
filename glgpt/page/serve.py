"""A loopback web server for an exported folder: right MIME types, range requests, Ctrl-C ends it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

from glgpt.errors import GlgptError

PORT = 8042


class Handler(SimpleHTTPRequestHandler):
    """Files of one folder, whole or one range of bytes."""

    protocol_version = "HTTP/1.1"
    _left: int | None = None  # bytes of a range yet to send
    extensions_map = {  # noqa: RUF012
        **SimpleHTTPRequestHandler.extensions_map,
        ".js": "text/javascript",
        ".css": "text/css",
        ".json": "application/json",
        ".bin": "application/octet-stream",
        ".html": "text/html; charset=utf-8",
        ".svg": "image/svg+xml",
    }

    def end_headers(self) -> None:
        """Every answer may be kept but must be asked about."""
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Accept-Ranges", "bytes")
        super().end_headers()

    def send_head(self) -> Any:
        """Answers with the file, or with the range that was asked for."""
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if not asked or not path.is_file() or asked[0] == "bytes=-":
            return super().send_head()
        size = path.stat().st_size
        if asked[1]:
            first, last = int(asked[1]), min(int(asked[2]) if asked[2] else size - 1, size - 1)
        else:
            first, last = max(0, size - int(asked[2])), size - 1
        if first > last:
            self.send_response(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
            self.send_header("Content-Range", f"bytes */{size}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        file = path.open("rb")
        file.seek(first)
        self._left = last - first + 1
        self.send_response(HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Content-Type", self.guess_type(path))
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(self._left))
        self.end_headers()
        return file

    def copyfile(self, source: IO[bytes], outputfile: Any) -> None:  # type: ignore[override]
        """Sends the file or the range; a reader that goes away is no error."""
        left, self._left = self._left, None
        try:
            while data := source.read(1 << 20 if left is None else min(1 << 20, left)):
                outputfile.write(data)
                left = None if left is None else left - len(data)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def server(folder: Path, port: int = PORT) -> ThreadingHTTPServer:
    """A server of `folder` on 127.0.0.1, not yet serving; port 0 takes a free one.

    Raises GlgptError for a folder without a page or a port that is taken.
    """
    if not (folder / "index.html").is_file():
        raise GlgptError(f"{folder} holds no index.html; make one with glgpt export --out {folder}")
    handler: Callable[..., Handler] = partial(Handler, directory=str(folder))
    try:
        made = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "it must be from 0 to 65535"
        raise GlgptError(f"port {port} cannot be used: {why}; choose another with --port") from None
    made.daemon_threads = True
    return made


def serve(folder: Path, port: int = PORT, announce: Callable[[str], None] = print) -> None:
    """Serves until Ctrl-C."""
    with server(folder, port) as running:
        announce(f"http://127.0.0.1:{running.server_address[1]}/")
        try:
            running.serve_forever()
        except KeyboardInterrupt:
            announce("")
