"""The servers from which a page may fetch training texts for its visitor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from glgpt.data.books import BOOKS, NO_BOOKS
from glgpt.errors import ArgumentError, GlgptError, quoted
from glgpt.page.documents.training import ListedBook

_CONNECT = re.compile(r"connect-src 'self'")
_ORIGIN = re.compile(r"https?://(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::\d{1,5})?")


@dataclass(frozen=True)
class Reading:
    """The sources of texts: a mirror for books, and other servers.

    `books` is a mirror with the paths of gutenberg.org, None for the default one, or NO_BOOKS. `hosts` are further
    origins. Raises ArgumentError for an invalid address.
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
        """Allows the page to connect to these servers, in its Content-Security-Policy."""
        allow_connections(index, self.origins())

    def origins(self) -> list[str]:
        """Returns the origins of these servers, each once."""
        return list(dict.fromkeys(map(_origin, (*(b["url"] for b in self.listed()), *self.hosts))))


def _origin(address: Any) -> str:
    parts = urlsplit(str(address))
    origin = f"{parts.scheme}://{parts.netloc}"
    if not _ORIGIN.fullmatch(origin):
        raise ArgumentError(f"{quoted(address, 300)} is not a server's address, such as https://books.example")
    return origin


def allow_connections(index: Path, origins: Iterable[str]) -> None:
    """Adds origins to the connect-src of a page's policy. Raises GlgptError for a page without a policy."""
    page, found = _CONNECT.subn(" ".join(["connect-src 'self'", *origins]), index.read_text(encoding="utf-8"))
    if found != 1:
        raise GlgptError("the built page has no Content-Security-Policy; rebuild it with: make viewer")
    index.write_text(page, encoding="utf-8")
