"""Reads UTF-8 text of any size, in pieces that can be tokenized separately."""

from __future__ import annotations

import codecs
import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from glgpt.errors import FileError, GlgptError, quoted, written
from glgpt.system.files import open_regular

UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
BLOCK = 1 << 20  # bytes of one read
MAX_PIECE_CHARACTERS = 1 << 22  # a text is divided after at least this many if `cut` finds no position


@dataclass(frozen=True)
class _Source:
    """The bytes from `start` to `stop` (excluded) of a file, or of a string in UTF-8 (`held`)."""

    name: str
    held: bytes | None
    start: int
    stop: int

    def open(self) -> IO[bytes]:
        return open_regular(Path(self.name)) if self.held is None else io.BytesIO(self.held)

    def blocks(self, size: int = BLOCK) -> Iterator[bytes]:
        with self.open() as file:
            file.seek(self.start)
            left = self.stop - self.start
            while left:
                block = file.read(min(size, left))
                if not block:
                    raise FileError(f"{quoted(self.name, 300)} became shorter while it was read")
                left -= len(block)
                yield block


class Text:
    """A text of one or more files, or of a string. If it is in files, only the piece being read is in memory."""

    def __init__(self, sources: Sequence[_Source]) -> None:
        """Use `of_files` or `of_string`."""
        self._sources = [source for source in sources if source.stop > source.start]
        self.size = sum(source.stop - source.start for source in sources)  # bytes

    @classmethod
    def of_files(cls, files: Iterable[str | Path]) -> Text:
        """Returns the text of the files in order, without byte order marks.

        Raises GlgptError if the list is empty, and for a file that is empty or not regular. Raises OSError for a file
        that cannot be opened.
        """
        sources = []
        for file in files:
            with open_regular(Path(file)) as opened:
                start = len(codecs.BOM_UTF8) * (opened.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8)
                size = opened.seek(0, io.SEEK_END)
            if size == start:
                raise FileError(f"{quoted(file, 300)} is empty; give a file with text")
            sources.append(_Source(str(file), None, start, size))
        if not sources:
            raise GlgptError("no text was given; give at least one file")
        return cls(sources)

    @classmethod
    def of_string(cls, text: str) -> Text:
        """Returns the text of a string. Raises GlgptError if it is not a string, is empty, or has a lone surrogate."""
        if not isinstance(text, str):
            raise GlgptError(f"the text is {written(text, 40)}, not a string")
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise GlgptError(f"the text holds half a surrogate pair at character {error.start}") from None
        start = len(codecs.BOM_UTF8) * data.startswith(codecs.BOM_UTF8)
        if len(data) == start:
            raise GlgptError("the text is empty")
        return cls([_Source("the text", data, start, len(data))])

    @property
    def name(self) -> str:
        """Returns the name of the first file, for messages."""
        return self._sources[0].name if self._sources else "the text"

    def digest(self) -> str:
        """Returns the SHA-256 of all bytes, in hexadecimal."""
        found = hashlib.sha256()
        for source in self._sources:
            for block in source.blocks():
                found.update(block)
        return found.hexdigest()

    def split(self, last: float) -> tuple[Text, Text]:
        """Splits the text between two characters; returns both parts.

        The second part has the share `last` (0 to 1) of all bytes, as nearly as possible.
        """
        parts: tuple[list[_Source], list[_Source]] = ([], [])
        at = int(self.size * (1 - last))
        for source in self._sources:
            middle = min(max(source.start, source.start + at), source.stop)
            if source.start < middle < source.stop:
                with source.open() as file:
                    file.seek(middle)
                    ahead = file.read(4)
                # Skips bytes 10xxxxxx, which continue a character.
                middle += next((i for i, byte in enumerate(ahead) if byte & 0xC0 != 0x80), len(ahead))
            parts[0].append(_Source(source.name, source.held, source.start, middle))
            parts[1].append(_Source(source.name, source.held, middle, source.stop))
            at -= source.stop - source.start
        return Text(parts[0]), Text(parts[1])

    def pieces(self, whole: Iterable[str] = (), blanks: str = " \n", block: int = BLOCK) -> Iterator[tuple[str, int]]:
        """Yields the text in pieces of about `block` bytes, each with the number of bytes read so far.

        Tokenizing each piece gives the same words as tokenizing the whole text, because pieces end at positions that
        `cut` returns (`whole` and `blanks` are its arguments). If `cut` finds no position in at least
        `MAX_PIECE_CHARACTERS` characters, as in a long run of one character, all of these characters become a piece.

        Raises GlgptError, with file and offset, for bytes that are not UTF-8.
        """
        whole = list(whole)
        held, read, searched = "", 0, 0
        for text, size in self._decoded(block):
            held, read = held + text, read + size
            at = cut(held, whole, blanks, searched) or (len(held) if len(held) >= MAX_PIECE_CHARACTERS else 0)
            searched = 0 if at else max(0, len(held) - max(map(len, whole), default=0))
            if at:
                yield held[:at], read
                held = held[at:]
        if held:
            yield held, read

    def _decoded(self, size: int) -> Iterator[tuple[str, int]]:
        for source in self._sources:
            decoder, at = codecs.getincrementaldecoder("utf-8")(), source.start
            for block in source.blocks(size):
                before = len(decoder.getstate()[0])
                try:
                    yield decoder.decode(block, final=at + len(block) == source.stop), len(block)
                except UnicodeDecodeError as error:
                    where = at - before + error.start
                    name = quoted(source.name, 300)
                    likely = "UTF-16" if where == 0 and error.object[:2] in UTF16 else "LATIN1"
                    remedy = f"convert it, for example with iconv -f {likely} -t UTF-8"
                    raise FileError(f"{name} is not UTF-8 text: {error.reason} at byte {where}; {remedy}") from None
                at += len(block)


def cut(text: str, whole: Iterable[str] = (), blanks: str = " \n", start: int = 0) -> int:
    """Returns a position, not before `start`, at which GPT-2's tokenizer splits words, whatever text follows.

    The position is directly before a blank that follows a non-blank: no word of GPT-2 extends over such a position, and
    the text before it does not affect how the text after it is split. Searches backwards for such a
    position before the first character of `blanks`. If there is none, searches for the next character of `blanks`, and
    so on. Returns 0 if no character of `blanks` has such a position. The position is never within a special token of
    `whole`.
    """
    special = [token for token in whole if len(token) > 1]
    end = len(text) - max(map(len, special), default=0)
    for blank in blanks:
        at = end
        while (at := text.rfind(blank, start, at)) > 0:
            if text[at - 1].isspace():  # continue the search before this run of blanks
                at = min(at, _run_start(text, start, at) + 1)
            elif all(text.find(token, max(0, at - len(token) + 1), at + len(token) - 1) < 0 for token in special):
                return at
    return 0


def _run_start(text: str, start: int, at: int) -> int:
    """Returns the start of the run of whitespace that ends before position `at`, but no less than `start`."""
    while at > start and text[at - 1].isspace():
        part = text[max(start, at - 64) : at]
        at -= len(part) - len(part.rstrip())
    return at
