"""Reads from HTTP servers that may misbehave: stops at a deadline, and follows redirects to http(s) addresses only."""

from __future__ import annotations

import io
import socket
import time
import urllib.parse
import urllib.request
from http.client import HTTPConnection, HTTPMessage, HTTPResponse, HTTPSConnection
from typing import IO, Any

from glgpt.errors import GlgptError, quoted

STALL_TIMEOUT_S = 20.0  # maximum seconds without a byte
MAX_REDIRECTS = 5


class PermanentError(GlgptError):
    """Raised for an error that would occur again if the request were repeated."""


class HttpOpener:
    """Opens HTTP addresses. Reading an answer raises `late` once `time.monotonic()` has reached `deadline`."""

    def __init__(self, deadline: float, late: PermanentError) -> None:
        answers = _timed_answers(deadline, late)
        self._director = urllib.request.build_opener(_Http(answers), _Https(answers), _Redirects)

    def open(self, url: str, headers: dict[str, str]) -> Any:
        """Returns the response, as `urllib.request.urlopen` does.

        Raises PermanentError for a redirect that cannot be followed, and if the deadline has passed. Raises OSError
        (such as urllib's HTTPError) or HTTPException for errors of the network and the server.
        """
        try:
            return self._director.open(urllib.request.Request(url, headers=headers), timeout=STALL_TIMEOUT_S)
        except GlgptError:
            raise
        except (ValueError, OverflowError) as error:  # raised for a redirect to an invalid host or port
            raise PermanentError(f"{quoted(url, 300)} leads to an invalid address: {quoted(error, 120)}") from None


def http_address(text: str) -> str:
    """Returns an http or https address in ASCII and without its fragment: the host in IDNA, the rest percent-encoded.

    Raises ValueError if the address is invalid or has another scheme.
    """
    parts = urllib.parse.urlsplit(text)
    host = (parts.hostname or "").encode("idna").decode("ascii")
    if parts.scheme not in ("http", "https") or not host:
        raise ValueError("it does not begin with http:// or https:// and a host")
    user, at, _ = parts.netloc.rpartition("@")
    place = f"[{host}]" if ":" in host else host
    port = "" if parts.port is None else f":{parts.port}"
    path, query = (urllib.parse.quote(part, safe="/:@!$&'()*+,;=%?~") for part in (parts.path, parts.query))
    location = urllib.parse.quote(user, safe=":%") + at + place + port
    return urllib.parse.urlunsplit((parts.scheme, location, path, query, ""))


class _TimedReader(io.RawIOBase):
    """Reads a socket until a deadline. The socket's own timeout is not enough, because it restarts with each byte."""

    def __init__(self, connection: socket.socket, deadline: float, late: PermanentError) -> None:
        super().__init__()
        self._connection, self._deadline, self._late = connection, deadline, late
        self._raw = connection.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._late
        self._connection.settimeout(min(STALL_TIMEOUT_S, left))
        try:
            return self._raw.readinto(buffer)
        except TimeoutError:
            if time.monotonic() >= self._deadline:
                raise self._late from None
            raise

    def close(self) -> None:
        self._raw.close()
        super().close()


def _timed_answers(deadline: float, late: PermanentError) -> type[HTTPResponse]:
    class Answer(HTTPResponse):
        def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
            super().__init__(sock, *args, **options)
            self.fp.close()
            self.fp = io.BufferedReader(_TimedReader(sock, deadline, late))

    return Answer


class _Http(urllib.request.HTTPHandler):
    def __init__(self, answers: type[HTTPResponse]) -> None:
        super().__init__()
        self.answers = answers

    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        def connect(host: str, **options: Any) -> HTTPConnection:
            connection = HTTPConnection(host, **options)
            connection.response_class = self.answers
            return connection

        return self.do_open(connect, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, answers: type[HTTPResponse]) -> None:
        super().__init__()
        self.answers = answers

    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        def connect(host: str, **options: Any) -> HTTPSConnection:
            connection = HTTPSConnection(host, **options)
            connection.response_class = self.answers
            return connection

        return self.do_open(connect, req)


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        fp.close()  # urllib would read the whole body, which may never end
        start = quoted(req.full_url, 300)
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            raise PermanentError(f"{start} leads to {quoted(newurl, 300)}, which is not an http address")
        visited = getattr(req, "redirect_dict", {})
        if newurl in visited or newurl == req.full_url:
            raise PermanentError(f"{start} redirects in a circle")
        if len(visited) >= MAX_REDIRECTS:
            raise PermanentError(f"{start} is reached after {MAX_REDIRECTS} redirects and redirects again")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
