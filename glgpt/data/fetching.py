"""Fetching a text: what is asked for and nothing else, kept by content with its source, date and digest."""

from __future__ import annotations

import codecs
import datetime
import hashlib
import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any

from glgpt.errors import GlgptError, quoted
from glgpt.system.files import cache_path, read_json, write_json, written_whole

MOST = 1 << 30  # bytes of a text, unless more are allowed
BLOCK = 1 << 16
TRIES = 4
WAIT = 0.5  # seconds before the second try, doubled for each further one
TIMEOUT = 20.0  # seconds without a byte
REDIRECTS = 5
BOOK = re.compile(r"book:(\d{1,6})")
MIRROR = "https://www.gutenberg.org"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Fetched:
    """A text that was fetched: where it lies, and where it is from."""

    path: Path
    source: str
    date: str
    sha256: str
    bytes: int

    def record(self) -> dict[str, Any]:
        """What a run's train.json says of it."""
        return {key: value for key, value in asdict(self).items() if key != "path"}


class _GivenError(GlgptError):
    """What another try would not change."""


def kept_folder() -> Path:
    """Where fetched texts are kept: `$XDG_CACHE_HOME/glgpt/data`."""
    return cache_path() / "data"


def address(name: str, mirror: str = MIRROR) -> str:
    """The address of a text: an http address itself, or `book:N`, a number of Project Gutenberg, at a mirror."""
    if book := BOOK.fullmatch(name):
        if urllib.parse.urlsplit(mirror).scheme not in ("http", "https"):
            raise GlgptError(f"--mirror {quoted(mirror, 300)} is no http address")
        return f"{mirror.rstrip('/')}/cache/epub/{book[1]}/pg{book[1]}.txt"
    if urllib.parse.urlsplit(name).scheme not in ("http", "https"):
        raise GlgptError(f"{quoted(name, 300)} is neither a set, an http address nor book:N (see glgpt data list)")
    return name


def fetch(
    url: str, *, mirror: str = MIRROR, encoding: str = "utf-8", most: int = MOST, progress: Progress | None = None
) -> Fetched:
    """Fetches a text of at most `most` bytes, with `TRIES` tries, each of which resumes where the last was cut off.

    The text is kept as UTF-8 under its SHA-256. Raises GlgptError, in one line, for a server that refuses, stalls, cuts
    off, lies about the length, redirects elsewhere than to http, or gives a page or another encoding.
    """
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise GlgptError(f"there is no encoding {quoted(encoding)}") from None
    url = address(url, mirror)
    download = _Download(url, most, progress)
    problem = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(WAIT * 2 ** (attempt - 1))
        try:
            download.attempt()
            break
        except _GivenError:
            raise
        except (OSError, HTTPException, GlgptError) as error:
            problem = _reason(error)
    else:
        raise GlgptError(f"{quoted(url, 300)} cannot be fetched, tried {TRIES} times: {problem}")
    return _keep(url, _decoded(url, bytes(download.data), encoding))


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = REDIRECTS

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            raise _GivenError(f"{quoted(req.full_url, 300)} leads to {quoted(newurl, 300)}, which is no http address")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Download:
    """The bytes that have come, over all tries."""

    def __init__(self, url: str, most: int, progress: Progress | None) -> None:
        self.url, self.most, self.progress = url, most, progress
        self.data, self.tag = bytearray(), ""
        self.opener = urllib.request.build_opener(_Redirects)

    def attempt(self) -> None:
        """Continues from the bytes there are, where the server can; OSError or GlgptError: try again."""
        headers = {"User-Agent": "glgpt", "Accept-Encoding": "identity"}
        if self.data and self.tag:
            headers |= {"Range": f"bytes={len(self.data)}-", "If-Range": self.tag}
        try:
            with self.opener.open(urllib.request.Request(self.url, headers=headers), timeout=TIMEOUT) as answer:
                self._take(answer)
        except urllib.error.HTTPError as error:
            said = f"{quoted(self.url, 300)}: the server answers {error.code} {quoted(error.reason)}"
            if 300 <= error.code < 500 and error.code not in (408, 429):
                raise _GivenError(said) from None
            raise GlgptError(said) from None

    def _take(self, answer: Any) -> None:
        kind = answer.headers.get_content_type()
        if kind in ("text/html", "application/xhtml+xml"):
            raise _GivenError(f"{quoted(self.url, 300)} is a web page, not a text: give the address of its plain text")
        if answer.status != 206:
            self.data.clear()
        self.tag = answer.headers.get("ETag") or ""
        length = answer.headers.get("Content-Length")
        total = len(self.data) + int(length) if length and length.isdecimal() else 0
        while True:
            if max(total, len(self.data)) > self.most:
                raise _GivenError(f"{quoted(self.url, 300)} is larger than {self.most:,} bytes; allow more with --most")
            block = answer.read1(BLOCK)
            if not block:
                break
            self.data += block
            if self.progress:
                self.progress(len(self.data), max(total, len(self.data)))
        if total and len(self.data) < total:
            raise GlgptError(f"it ended after {len(self.data):,} of {total:,} bytes")
        if not self.data:
            raise _GivenError(f"{quoted(self.url, 300)} is empty")


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, TimeoutError):
        return f"no byte came for {TIMEOUT:.0f} s"
    return quoted(getattr(inner, "strerror", None) or inner or type(inner).__name__, 200)


def _decoded(url: str, data: bytes, encoding: str) -> bytes:
    head = data[:1024].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        raise GlgptError(f"{quoted(url, 300)} is a web page, not a text: give the address of its plain text")
    try:
        text = data.decode("utf-8-sig" if encoding == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        why = f"{error.reason} at byte {error.start}"
        hint = "; is it --encoding latin-1?" if encoding == "utf-8" else ""
        raise GlgptError(f"{quoted(url, 300)} is not {encoding} text: {why}{hint}") from None
    if "\0" in text:
        raise GlgptError(f"{quoted(url, 300)} is no text: it holds a zero byte")
    return text.encode()


def _keep(url: str, data: bytes) -> Fetched:
    folder, digest = kept_folder(), hashlib.sha256(data).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest}.txt"
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = Fetched(path, url, date, digest, len(data))
    with written_whole(path) as file:
        file.write(data)
    write_json(path.with_suffix(".json"), found.record())
    return found


def source_of(sha256: str) -> dict[str, Any] | None:
    """What is known of a fetched text by its digest: source, date, sha256, bytes; None for any other."""
    path = kept_folder() / f"{sha256}.json"
    try:
        found = read_json(path) if path.is_file() else None
    except (OSError, GlgptError):  # damaged: as if it was not there
        return None
    if not found or set(found) != {"source", "date", "sha256", "bytes"}:
        return None
    return json.loads(json.dumps(found)) if found["sha256"] == sha256 else None
