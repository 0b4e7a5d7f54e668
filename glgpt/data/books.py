"""Lists the public-domain books that a page offers as training texts.

The page fetches a book from a mirror, because gutenberg.org refuses requests by pages of other origins (CORS).
"""

from __future__ import annotations

from dataclasses import dataclass

from glgpt.data.fetching import address

OPEN_MIRROR = "https://raw.githubusercontent.com/GITenberg"  # a mirror that accepts requests by pages of all origins

NO_BOOKS = "none"  # given instead of a mirror's address if the page should offer no books


@dataclass(frozen=True)
class Book:
    """A book: its number at Project Gutenberg, and the name of its GITenberg repository without the number."""

    number: int
    title: str
    author: str
    repository: str

    def url(self, mirror: str | None = None) -> str:
        """Returns the URL of the book's text at `mirror`, a site with gutenberg.org's paths (None: at OPEN_MIRROR)."""
        if mirror is None:
            return f"{OPEN_MIRROR}/{self.repository}_{self.number}/master/{self.number}.txt"
        return address(f"book:{self.number}", mirror)


BOOKS = (
    Book(1342, "Pride and Prejudice", "Jane Austen", "Pride-and-Prejudice"),
    Book(11, "Alice's Adventures in Wonderland", "Lewis Carroll", "Alice-s-Adventures-in-Wonderland"),
    Book(84, "Frankenstein", "Mary Shelley", "Frankenstein"),
    Book(1661, "The Adventures of Sherlock Holmes", "Arthur Conan Doyle", "The-Adventures-of-Sherlock-Holmes"),
    Book(35, "The Time Machine", "H. G. Wells", "The-Time-Machine"),
    Book(36, "The War of the Worlds", "H. G. Wells", "The-War-of-the-Worlds"),
    Book(345, "Dracula", "Bram Stoker", "Dracula"),
    Book(2701, "Moby Dick", "Herman Melville", "Moby-Dick--Or-The-Whale"),
)
