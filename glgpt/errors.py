"""What a user's mistake raises, by kind, and how other people's text is quoted in a message."""

from __future__ import annotations

import reprlib


class GlgptError(ValueError):
    """Bad input: a file, an option, an id or a device that cannot serve.

    The message is one line: what was wrong, where, and what to do. The command line prints it and exits with 2.
    """


class FileError(GlgptError):
    """A file or folder that is wrong: it cannot be read, holds something else, or cannot be written where asked."""


class ArgumentError(GlgptError):
    """An argument that is wrong: a value out of range, or two that exclude each other."""


class DeviceError(GlgptError):
    """A device that cannot: it does not open, or it refuses a texture, a framebuffer or a shader."""


def quoted(text: object, limit: int = 80) -> str:
    """`text` as one printable line of at most `limit` characters: control characters escaped, a long middle left out.

    For names and values that come from files and arguments: what reaches a terminal raw could steer it.
    """
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
    if len(line) <= limit:
        return line
    head = (limit - 1) * 2 // 3
    return f"{line[:head]}…{line[len(line) - (limit - 1 - head) :]}"


def written(value: object, limit: int = 80) -> str:
    """`value` as Python writes it, in quotes where it is text; of any size and depth: see `quoted`."""
    if isinstance(value, str):
        half = limit // 2  # escaping takes time by the length
        return quoted(repr(value if len(value) <= limit else f"{value[:half]}…{value[-half:]}"), limit + 4)
    if isinstance(value, int) and abs(value) >= 10**limit:
        return f"a number of some {round(value.bit_length() * 0.30103)} digits"
    return quoted(_REPR.repr(value), limit)


_REPR = reprlib.Repr()
_REPR.maxlong = _REPR.maxother = 100
