"""Reads GGUF files, versions 2 and 3: the metadata, and where each tensor is stored.

A model may be split into several files, its parts, whose names end in -00001-of-00003.gguf and so on.

A file is untrusted. Its header is read field by field from a buffered file. Before anything is allocated, every count
is checked against the number of bytes left and the limits below.
"""

from __future__ import annotations

import functools
import math
import os
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from glgpt.errors import FileError, quoted, written
from glgpt.gguf.block_types import OTHERS, TYPES
from glgpt.gguf.tensor import GgufTensor
from glgpt.system.files import open_input

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER = 128 << 20  # maximum bytes of a header; Gemma's header, which lists 262,144 tokens, takes 7 million
MAX_ENTRIES = 1 << 16  # maximum number of keys, and of tensors
MAX_TEXTS = 1 << 20  # maximum number of strings in all arrays together
MAX_BLOCK = 1 << 16  # maximum bytes of an array of strings that are read at once
MAX_NAME = 256  # maximum bytes of a key or of a tensor's name
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
ALIGNMENT = 32  # in bytes: each tensor starts at a multiple of this number, unless the file states another
STRING, ARRAY, BOOL = 8, 9, 7
# NumPy's dtype of each GGUF type of numbers or booleans, by the type's id in a file.
NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
# Names of other kinds of files in error messages, by the first bytes of a file after any blanks
_OTHER_STARTS = {
    b"<": "an HTML page, such as an error of a download",
    b"{": "JSON, such as an error of a download",
    b"PK": "a zip file or a PyTorch checkpoint",
    b"\x1f\x8b": "compressed with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"lmgg": "in the GGML format, which precedes GGUF",
    b"tjgg": "in the GGML format, which precedes GGUF",
}
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_COUNT = "split.count"
_LENGTH = struct.Struct("<Q")  # length of a string in bytes


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file's metadata by key and tensors by name. Arrays of numbers in the metadata are NumPy arrays."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]
    alignment: int = ALIGNMENT
    texts: int = field(default=0, compare=False)  # number of strings in all arrays

    def string(self, key: str, default: str | None = None) -> str:
        """Returns a string of the metadata, or `default` if the key is missing.

        Raises FileError if the key is missing and has no default, and for a value that is not a string.
        """
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            found = "is missing" if value is None else f"is {written(value)}, not a string"
            raise FileError(f"{quoted(self.path, 300)}: {key} {found}")
        return value


def is_gguf(path: Path) -> bool:
    """True if a path names a file (not a folder) whose name ends in .gguf."""
    return path.suffix.lower() == ".gguf" and path.is_file()


def all_parts(name: str) -> list[str]:
    """Returns the names of all parts of a split file if `name` is that of the first part; otherwise only `name`."""
    found = _SPLIT.fullmatch(name)
    if not found or int(found[2]) != 1:
        return [name]
    return [f"{found[1]}-{i:05d}-of-{found[3]}.gguf" for i in range(1, int(found[3]) + 1)]


def later_part(path: Path) -> bool:
    """True if the name is that of the second or a later part of a split file."""
    found = _SPLIT.fullmatch(path.name)
    return found is not None and int(found[2]) > 1


def open_gguf(path: Path) -> GgufFile:
    """Reads the header of a file and, if the file is split, the headers of its other parts. Caches the latest result.

    Raises FileError, naming the file, for anything that is not a complete GGUF file of a supported version.
    """
    return _joined(path, identity(path))


def identity(path: Path) -> tuple[int, ...]:
    """Returns a key for caching. It changes when the file, or any part of a split file, is changed or replaced."""
    found: list[int] = []
    for name in all_parts(path.name):
        try:
            about = path.with_name(name).stat()
        except (OSError, ValueError):  # no error here: `read_header` raises one that names the file
            break
        found += [about.st_mtime_ns, about.st_size, about.st_ino]
    return tuple(found)


@functools.lru_cache(maxsize=1)
def _joined(path: Path, _identity: tuple[int, ...]) -> GgufFile:
    """Reads a file. If `path` is the first part of a split file, the result has the tensors of all parts."""
    first = read_header(path)
    count = first.metadata.get(_COUNT, 1)
    if isinstance(count, int) and count == 1:
        return first
    name, shown = _SPLIT.fullmatch(path.name), quoted(path, 300)
    if not isinstance(count, int) or not name or int(name[3]) != count:
        raise FileError(f"{shown} is one of {written(count)} parts; its name must end in -00001-of-0000N.gguf")
    if int(name[2]) != 1:
        raise FileError(f"{shown} is part {int(name[2])} of {count}; give the first, {name[1]}-00001-of-{name[3]}.gguf")
    tensors = dict(first.tensors)
    for other in all_parts(path.name)[1:]:
        part = read_header(path.with_name(other))
        if twice := tensors.keys() & part.tensors.keys():
            raise FileError(f"{quoted(part.path, 300)}: tensor {min(twice)} is in an earlier part too")
        tensors |= part.tensors
    return GgufFile(path, first.metadata, tensors, first.alignment)


def read_header(path: Path) -> GgufFile:
    """Reads the header of one file. Raises FileError as `open_gguf` does."""
    with open_input(path) as file:
        cursor = _Cursor(file, quoted(path, 300))
        try:
            return cursor.whole(path)
        except OSError as error:
            raise FileError(f"{cursor.name} cannot be read: {error.strerror}") from None


class _Cursor:
    """Reads the fields of a header; each method raises FileError instead of reading past the end or a limit."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.file, self.name = file, name
        self.size = os.fstat(file.fileno()).st_size
        self.left = min(self.size, MAX_HEADER)
        self.texts = 0

    def problem(self, what: str) -> FileError:
        return FileError(f"{self.name} is not a valid GGUF file: {what}")

    def check_magic(self) -> None:
        """Raises FileError, which describes the first bytes, if the file does not begin with `MAGIC`."""
        begins = self.file.read(16)
        if len(begins) < len(MAGIC) and MAGIC.startswith(begins):
            raise self.problem("it is truncated" if begins else "it is empty; download it again")
        if not begins.startswith(MAGIC):
            other = next((what for start, what in _OTHER_STARTS.items() if begins.lstrip().startswith(start)), "")
            # a safetensors file begins with a length of 8 bytes and then JSON
            other = other or ("a safetensors file" if begins[8:9] == b"{" else "")
            shown = quoted(repr(begins)[1:])
            raise self.problem(f"it begins with {shown}, not with GGUF{f'; it may be {other}' * bool(other)}")
        self.file.seek(len(MAGIC))
        self.left -= len(MAGIC)

    def bytes(self, count: int) -> bytes:
        if count > self.left:
            what = "it is truncated" if self.size <= MAX_HEADER else f"its header exceeds {MAX_HEADER >> 20} MiB"
            raise self.problem(what)
        self.left -= count
        found = self.file.read(count)
        if len(found) < count:
            raise self.problem("it is truncated")
        return found

    def integer(self, count: int = 8) -> int:
        return int.from_bytes(self.bytes(count), "little")

    def count(self, what: str, most: int) -> int:
        found = self.integer()
        if found > most:
            raise self.problem(f"it has {found:,} {what}; at most {most:,} are supported")
        return found

    def label(self) -> str:
        """Returns a key or the name of a tensor."""
        length = self.integer()
        if length > MAX_NAME:
            raise self.problem(f"a name has {length:,} bytes; at most {MAX_NAME} are supported")
        try:
            return self.bytes(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self.problem("a name is not UTF-8") from None

    def string(self) -> str:
        return self.bytes(self.integer()).decode("utf-8", errors="replace")

    def strings(self, count: int) -> list[str]:
        found: list[str] = []
        while len(found) < count:
            found += self._block(count - len(found)) or [self.string()]
        return found

    def _block(self, count: int) -> list[str]:
        """Reads a block of bytes. Returns the first strings, at most `count`, that lie completely within the block."""
        start, data = self.file.tell(), self.file.read(min(self.left, MAX_BLOCK, 32 * count))
        found: list[str] = []
        begin, last = 0, len(data) - _LENGTH.size
        while begin <= last and len(found) < count:
            first = begin + _LENGTH.size
            end = first + _LENGTH.unpack_from(data, begin)[0]
            if end > len(data):
                break
            found.append(str(data[first:end], "utf-8", "replace"))
            begin = end
        self.left -= begin
        self.file.seek(start + begin)
        return found

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            return self.array()
        if kind not in NUMBERS:
            raise self.problem(f"the metadata has a value of the unknown type {kind}")
        found = np.frombuffer(self.bytes(np.dtype(NUMBERS[kind]).itemsize), NUMBERS[kind])[0]
        return bool(found) if kind == BOOL else found.item() if kind != 6 else float(str(found))

    def array(self) -> Any:
        kind, count = self.integer(4), self.integer()
        if kind == STRING:
            self.texts += count
            if self.texts > MAX_TEXTS:
                raise self.problem(f"its arrays have more than {MAX_TEXTS:,} strings")
            return self.strings(count)
        if kind not in NUMBERS:
            what = "an array of arrays" if kind == ARRAY else f"an array of the unknown type {kind}"
            raise self.problem(f"the metadata has {what}")
        found = np.frombuffer(self.bytes(count * np.dtype(NUMBERS[kind]).itemsize), NUMBERS[kind])
        return found.astype(bool) if kind == BOOL else found

    def whole(self, path: Path) -> GgufFile:
        self.check_magic()
        version = self.integer(4)
        if version not in VERSIONS:
            if version & 0xFFFF == 0 and version >> 24 in VERSIONS:
                raise FileError(f"{self.name} is a big-endian GGUF file; glgpt reads little-endian ones")
            raise FileError(f"{self.name} is a GGUF file of version {version}; glgpt reads versions 2 and 3")
        tensors, keys = self.count("tensors", MAX_ENTRIES), self.count("keys", MAX_ENTRIES)
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self.label()
            if key in metadata:
                raise self.problem(f"the key {written(key)} appears twice")
            metadata[key] = self.value(self.integer(4))
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self.problem(
                f"general.alignment is {written(alignment)}, not a power of two from 8 to {MAX_ALIGNMENT:,}"
            )
        described = [self.tensor() for _ in range(tensors)]
        start = -(-self.file.tell() // alignment) * alignment
        return GgufFile(path, metadata, self.placed(path, described, start, alignment), alignment, self.texts)

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Returns the name of a tensor, its shape with the contiguous axis last, its type and its offset."""
        name, count = self.label(), self.integer(4)
        if count > MAX_DIMENSIONS:
            raise self.problem(f"tensor {written(name)} has {count:,} dimensions")
        shape = tuple(self.integer() for _ in range(count))[::-1]
        return name, shape, self.integer(4), self.integer()

    def placed(
        self, path: Path, described: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
    ) -> dict[str, GgufTensor]:
        """Returns the tensors by name. Raises FileError if a tensor is not inside the file or overlaps another."""
        found: dict[str, GgufTensor] = {}
        end, previous = 0, ""
        for name, shape, number, offset in sorted(described, key=lambda tensor: tensor[3]):
            shown = quoted(name, 120)  # escapes control characters; 120 is longer than real names
            if shown in found:
                raise self.problem(f"tensor {shown} appears twice")
            kind = TYPES.get(number)
            if kind is None:
                other = OTHERS.get(number, f"number {number}")
                known = ", ".join(t.name for t in TYPES.values())
                raise FileError(f"{self.name}: tensor {shown} has type {other}; glgpt reads {known}")
            if not shape or 0 in shape or shape[-1] % kind.block:
                raise self.problem(f"tensor {shown} has shape {list(shape)}, which {kind.name} cannot hold")
            if offset % alignment or offset < end:
                where = f"overlaps {previous}" if offset < end else f"is not at a multiple of {alignment} bytes"
                raise self.problem(f"tensor {shown} {where}")
            end, previous = offset + math.prod(shape) // kind.block * kind.nbytes, shown
            if start + end > self.size:
                missing = start + end - self.size
                raise self.problem(f"it is truncated: tensor {shown} ends {missing:,} bytes after the end of the file")
            found[shown] = GgufTensor(path, kind, shape, start + offset)
        return found
