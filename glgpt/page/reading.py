"""Defines the servers from which a page may fetch training texts or, in a page without weights, models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glgpt.data.books import BOOKS, NO_BOOKS
from glgpt.errors import ArgumentError, GlgptError, quoted
from glgpt.page.documents.training import ListedBook
from glgpt.system.network import url_parts

_CONNECT = re.compile(r"connect-src 'self'")
_ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::\d{1,5})?")


@dataclass(frozen=True)
class Reading:
    """The servers from which a page may fetch texts or models: a mirror of gutenberg.org for books, and others.

    `books` is the address of a mirror that has the same paths as gutenberg.org; None: the default mirror; NO_BOOKS: no
    books. `hosts` are addresses of other servers. Raises ArgumentError for an invalid address.
    """

    books: str | None = None
    hosts: Sequence[str] = ()

    def __post_init__(self) -> None:
        for address in (*self.hosts, *(book["url"] for book in self.listed())):
            _origin(address)

    def listed(self) -> list[ListedBook]:
        """Returns the books that the page offers."""
        if self.books == NO_BOOKS:
            return []
        if self.books is not None:
            _origin(self.books)
        return [{"title": b.title, "author": b.author, "url": b.url(self.books)} for b in BOOKS]

    def allow(self, index: Path) -> None:
        """Changes the page's Content-Security-Policy so that the page may connect to the servers of all sources."""
        allow_connections(index, self.origins())

    def origins(self) -> list[str]:
        """Returns the origin (scheme, host and port) of the server of each source, without duplicates."""
        return list(dict.fromkeys(map(_origin, (*(b["url"] for b in self.listed()), *self.hosts))))


def _origin(address: Any) -> str:
    parts = url_parts(str(address))
    origin = f"{parts.scheme}://{parts.netloc}"
    if not _ORIGIN.fullmatch(origin):
        raise ArgumentError(f"{quoted(address, 300)} is not a server's address, such as https://books.example")
    return origin


def allow_connections(index: Path, origins: Iterable[str]) -> None:
    """Adds origins to `connect-src` in the Content-Security-Policy of the page `index`.

    Raises GlgptError if the page has no such policy.
    """
    page, found = _CONNECT.subn(" ".join(["connect-src 'self'", *origins]), index.read_text(encoding="utf-8"))
    if found != 1:
        raise GlgptError("the built page has no Content-Security-Policy; rebuild it with: make viewer")
    index.write_text(page, encoding="utf-8")
