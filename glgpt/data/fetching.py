"""Fetches a text from a URL and stores it in the cache under its SHA-256, with its source and date."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import time
import urllib.error
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from glgpt.data import limited_http
from glgpt.data.limited_http import HttpOpener, PermanentError, http_address
from glgpt.errors import GlgptError, quoted
from glgpt.system.files import cache_path, read_json, write_json, written_whole

MAX_TEXT_BYTES = 1 << 30  # default maximum size of a text, in bytes
BLOCK = 1 << 16  # maximum bytes of one read
TRIES = 4
RETRY_WAIT_S = 0.5  # seconds before the second try, doubled for each further try
TIME_LIMIT_S = 3600.0  # default time limit for all tries together
BOOK = re.compile(r"book:(\d{1,6})")
RANGE = re.compile(r"bytes (\d{1,15})-(\d{1,15})/(\d{1,15}|\*)")  # first byte, last byte, total
MIRROR = "https://www.gutenberg.org"
# Receives (bytes so far, total bytes). If the total is unknown, both are the bytes so far.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Fetched:
    """A fetched text: its file in the cache, its source address, the date of the fetch, its SHA-256 and its size."""

    path: Path
    source: str
    date: str
    sha256: str
    bytes: int

    def record(self) -> dict[str, Any]:
        """Returns the fields that a training run's train.json stores about the text: all but `path`."""
        return {key: value for key, value in asdict(self).items() if key != "path"}


def kept_folder() -> Path:
    """Returns the folder of fetched texts: `data` in the cache folder."""
    return cache_path() / "data"


def address(name: str, mirror: str = MIRROR) -> str:
    """Returns the URL of a text: `name` itself, or for `book:N`, the URL of Project Gutenberg's book N at `mirror`.

    `http_address` brings the URL into its normal form. Raises GlgptError if `mirror` (for a book) or `name` (otherwise)
    is not an http(s) URL.
    """
    book = BOOK.fullmatch(name)
    text, what = (mirror, "--mirror ") if book else (name, "")
    try:
        found = http_address(text)
    except ValueError as error:
        hint = "; give a data set, an http address or book:N (see glgpt data list)" if not book else ""
        raise GlgptError(f"{what}{quoted(text, 300)} is not an http address: {quoted(error, 120)}{hint}") from None
    return f"{found.rstrip('/')}/cache/epub/{book[1]}/pg{book[1]}.txt" if book else found


def fetch(
    url: str,
    *,
    mirror: str = MIRROR,
    encoding: str = "utf-8",
    most: int = MAX_TEXT_BYTES,
    timeout: float = TIME_LIMIT_S,
    progress: Progress | None = None,
) -> Fetched:
    """Fetches a text of at most `most` bytes in up to `TRIES` tries, and stores it as UTF-8 under its SHA-256.

    Each try resumes where the previous one stopped, if the server allows it. Raises GlgptError with a one-line message
    if the server refuses, stalls, disconnects, sends a wrong length or range, or redirects to a scheme other than
    http(s), or if all tries take more than `timeout` seconds. Also raises it for a web page, and for a text that is
    empty, larger than `most` bytes or in another encoding.
    """
    try:
        "a".encode(encoding)
    except (LookupError, ValueError):  # unknown, or not an encoding of text
        raise GlgptError(f"unknown encoding {quoted(encoding)}") from None
    url = address(url, mirror)
    late = PermanentError(f"{quoted(url, 300)} took more than {timeout:,.0f} s; allow more with --timeout")
    download = _Download(url, most, HttpOpener(time.monotonic() + timeout, late), progress)
    problem = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(RETRY_WAIT_S * 2 ** (attempt - 1))
        try:
            download.attempt()
            break
        except PermanentError:
            raise
        except (OSError, HTTPException, GlgptError) as error:
            problem = _reason(error)
    else:
        raise GlgptError(f"{quoted(url, 300)} cannot be fetched, tried {TRIES} times: {problem}")
    return _keep(url, _decoded(url, bytes(download.data), encoding))


class _Download:
    """Downloads a text; `data` holds the bytes received so far, over all tries."""

    def __init__(self, url: str, most: int, opener: HttpOpener, progress: Progress | None) -> None:
        self.url, self.most, self.opener, self.progress = url, most, opener, progress
        self.data = bytearray()
        self.tag = ""  # the text's strong ETag, or ""; only an ETag shows that two answers are parts of the same text
        self.total = 0  # bytes of the whole text; 0 if unknown

    def attempt(self) -> None:
        """Requests the bytes after those received so far. Requests all bytes if the server sent no strong ETag.

        A server that cannot resume sends all bytes. The caller tries again after any error except PermanentError.
        """
        headers = {"User-Agent": "glgpt", "Accept-Encoding": "identity"}
        if self.data and self.tag:
            headers |= {"Range": f"bytes={len(self.data)}-", "If-Range": self.tag}
        try:
            with self.opener.open(self.url, headers) as answer:
                self._take(answer)
        except urllib.error.HTTPError as error:
            said = f"{quoted(self.url, 300)}: the server answers {error.code} {quoted(error.reason)}"
            if error.code == 416:
                raise self._restart("the server cannot resume") from None
            if 300 <= error.code < 500 and error.code not in (408, 429):
                raise PermanentError(said) from None
            raise GlgptError(said) from None

    def _take(self, answer: Any) -> None:
        kind = answer.headers.get_content_type()
        if kind in ("text/html", "application/xhtml+xml"):
            raise PermanentError(
                f"{quoted(self.url, 300)} is a web page, not a text: give the address of its plain text"
            )
        tag = answer.headers.get("ETag") or ""
        if answer.status == 206:
            end = self._range_end(answer.headers.get("Content-Range") or "", tag)
        else:
            self.data.clear()
            self.total = end = _whole(answer.headers.get("Content-Length"))
        self.tag = "" if tag.startswith("W/") else tag
        while True:
            if max(self.total, len(self.data)) > self.most:
                raise PermanentError(
                    f"{quoted(self.url, 300)} is larger than {self.most:,} bytes; allow more with --max-size"
                )
            block = answer.read1(BLOCK)
            if not block:
                break
            self.data += block
            if self.progress:
                self.progress(len(self.data), max(self.total, len(self.data)))
        if end and len(self.data) > end:
            raise self._restart(f"it sent {len(self.data):,} bytes, but announced {end:,}")
        if len(self.data) < self.total:
            raise GlgptError(f"it ended after {len(self.data):,} of {self.total:,} bytes")
        if not self.data:
            raise PermanentError(f"{quoted(self.url, 300)} is empty")

    def _range_end(self, text: str, tag: str) -> int:
        """Returns the byte position in the text at which a partial answer ends.

        `text` is the answer's Content-Range, and `tag` its ETag. Raises GlgptError if the answer does not continue
        `data`.
        """
        found = RANGE.fullmatch(text)
        first, last = (int(found[1]), int(found[2])) if found else (-1, -1)
        total = last + 1 if not found or found[3] == "*" else int(found[3])
        if first != len(self.data) or not first <= last < total or (self.total and total != self.total):
            sent = quoted(text) or "an unnamed range"
            raise self._restart(f"it sent {sent} where bytes from {len(self.data):,} on were requested")
        if self.data and tag != self.tag:
            raise self._restart("the text has changed on the server")
        self.total = total
        return last + 1

    def _restart(self, why: str) -> GlgptError:
        self.data.clear()
        self.tag, self.total = "", 0
        return GlgptError(why)


def _whole(digits: str | None) -> int:
    return int(digits) if digits and digits.isdecimal() and len(digits) < 16 else 0


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(inner, TimeoutError):
        return f"no byte arrived for {limited_http.STALL_TIMEOUT_S:.0f} s"
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
        raise GlgptError(f"{quoted(url, 300)} is not a text: it holds a zero byte")
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
    """Returns the source, date, sha256 and bytes (size) of the fetched text with this SHA-256, or None if unknown."""
    path = kept_folder() / f"{sha256}.json"
    try:
        found = read_json(path) if path.is_file() else None
    except (OSError, GlgptError):  # a damaged record counts as missing
        return None
    if not found or set(found) != {"source", "date", "sha256", "bytes"}:
        return None
    return json.loads(json.dumps(found)) if found["sha256"] == sha256 else None
