"""Provides a local server whose paths fail in all the ways in which a download of a text can fail."""

from __future__ import annotations

import contextlib
import time
from http.server import BaseHTTPRequestHandler

TEXT = "Shall I compare thee to a summer's day? naïve – 漢字\n" * 400
BYTES = TEXT.encode()


class Stranger(BaseHTTPRequestHandler):
    """Answers a request for `/name` with the method `on_name`."""

    protocol_version = "HTTP/1.1"
    asked: list[str] = []  # noqa: RUF012, the paths of all requests
    ranges: list[str | None] = []  # noqa: RUF012, their Range headers

    def log_message(self, *_: object) -> None:
        pass

    def send(self, status: int, body: bytes, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True

    def do_GET(self) -> None:
        Stranger.asked.append(self.path)
        Stranger.ranges.append(self.headers.get("Range"))
        getattr(self, "on_" + self.path.split("/")[1].replace("-", "_"), self.on_missing)()

    def on_missing(self) -> None:
        self.send(404, b"no")

    def on_cache(self) -> None:
        self.on_text()

    def on_text(self) -> None:
        self.send(200, BYTES, Content_Type="text/plain")

    def on_moved(self) -> None:
        self.send(302, b"", Location="/text")

    def on_round(self) -> None:
        self.send(302, b"", Location="/round")

    def on_file(self) -> None:
        self.send(302, b"", Location="file:///etc/hostname")

    def on_busy(self) -> None:
        self.send(200, BYTES) if Stranger.asked.count("/busy") > 2 else self.send(503, b"later")

    def on_page(self) -> None:
        self.send(200, b"<html>hello</html>", Content_Type="text/html")

    def on_dressed(self) -> None:
        self.send(200, b"  <!DOCTYPE html><p>hello", Content_Type="text/plain")

    def on_latin(self) -> None:
        self.send(200, "naïve café".encode("latin-1"))

    def on_zeros(self) -> None:
        self.send(200, b"PK\0\0")

    def on_empty(self) -> None:
        self.send(200, b"")

    def on_cut(self) -> None:
        self.send(200, BYTES[: len(BYTES) // 2], len(BYTES))

    def on_resumed(self) -> None:
        """Sends a third of the text and disconnects. Starts at the first byte of the requested range, if any."""
        begin = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        end = min(len(BYTES), begin + len(BYTES) // 3 + 1)
        rest = len(BYTES) - begin
        content = {"Content_Range": f"bytes {begin}-{len(BYTES) - 1}/{len(BYTES)}"} if begin else {}
        self.send(206 if begin else 200, BYTES[begin:end], rest, ETag='"one"', **content)

    def on_lies(self) -> None:
        """Disconnects after four bytes. Answers a request for the rest with bytes that it says are the first four."""
        self.send_lie("bytes 0-3/8")

    def on_another(self) -> None:
        """Disconnects after four of eight bytes. Answers a request for the rest with bytes of a text of nine bytes."""
        self.send_lie("bytes 4-7/9")

    def send_lie(self, content: str) -> None:
        self.send_response(206 if self.headers.get("Range") else 200)
        self.send_header("ETag", '"one"')
        self.send_header("Content-Length", "4" if self.headers.get("Range") else "8")
        if self.headers.get("Range"):
            self.send_header("Content-Range", content)
            self.send_header("Access-Control-Expose-Headers", "Content-Range")
        self.end_headers()
        self.wfile.write(b"EVIL" if self.headers.get("Range") else b"good")
        self.close_connection = True

    def on_weak(self) -> None:
        """Disconnects after 1000 bytes the first time. The ETag is weak: it does not promise the same bytes again."""
        first = Stranger.asked.count("/weak") == 1
        self.send(200, BYTES[:1000] if first else BYTES, len(BYTES), ETag='W/"one"')

    def on_drips(self) -> None:
        """Sends 200 bytes, one every 50 ms, so that no single read times out."""
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(200):
                self.wfile.write(b"x")
                time.sleep(0.05)

    def on_headers(self) -> None:
        """Sends 90 headers, one every 50 ms, without the empty line that ends headers."""
        with contextlib.suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\n")
            for _ in range(90):
                self.wfile.write(b"X: x\r\n")
                time.sleep(0.05)
        self.close_connection = True

    def on_bracket(self) -> None:
        self.send(302, b"", Location="http://[::1")

    def on_dots(self) -> None:
        self.send(302, b"", Location="http://a..b/")

    def on_long(self) -> None:
        self.send(200, b"", Content_Length="9" * 5000)

    def on_padded(self) -> None:
        """Sends a redirect whose body never ends."""
        self.send_response(302)
        self.send_header("Location", "/text")
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"x" * 65536)

    def on_endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"x" * 65536)

    def on_stalls(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"some")
        self.wfile.flush()
        time.sleep(1)
        self.close_connection = True
