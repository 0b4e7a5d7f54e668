"""Defines the exceptions for users' mistakes, and functions that check and quote untrusted text."""

from __future__ import annotations

import reprlib


class GlgptError(ValueError):
    """Bad input: a file, an option, an id or a device that cannot be used.

    The message is one line: what is wrong, where, and what to do. The command line prints it and exits with 2.
    """


class FileError(GlgptError):
    """A file or folder that cannot be read, has the wrong content, or cannot be written."""


class ArgumentError(GlgptError):
    """An invalid argument: a value out of range, or two arguments that cannot be combined."""


class DeviceError(GlgptError):
    """A device that cannot be opened, or that refuses a texture, a framebuffer or a shader."""


class TextureError(DeviceError):
    """A texture that the driver refuses, for example because memory does not suffice.

    The message consists of `reason` (which texture was refused, and why) and `remedy` (what to do).
    """

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason


def is_utf8(text: str) -> bool:
    """True if UTF-8 can encode a text. It cannot encode surrogates, which Python reads for bytes that are not UTF-8."""
    return not any("\ud800" <= c <= "\udfff" for c in text)


def quoted(text: object, limit: int = 80) -> str:
    """Returns `text` as one printable line of at most `limit` characters, with an ellipsis in the middle if it is long.

    Escapes control characters, because a name or value from a file or an argument could control the terminal with them.
    """
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))
    if len(line) <= limit:
        return line
    head = (limit - 1) * 2 // 3
    return f"{line[:head]}…{line[len(line) - (limit - 1 - head) :]}"


def written(value: object, limit: int = 80) -> str:
    """Returns the `repr` of a value, shortened and escaped as by `quoted`; for a huge integer, its number of digits."""
    if isinstance(value, str):
        half = limit // 2  # shortened first: escaping takes time proportional to the length
        return quoted(repr(value if len(value) <= limit else f"{value[:half]}…{value[-half:]}"), limit + 4)
    if isinstance(value, int) and abs(value) >= 10**limit:
        return _described(value)
    return quoted(_REPR.repr(value), limit)


def _described(value: int) -> str:
    return f"a number of about {round(value.bit_length() * 0.30103)} digits"


class _Repr(reprlib.Repr):
    """Describes huge integers within lists, because Python refuses to convert them to digits."""

    def repr_int(self, value: int, level: int) -> str:
        """Returns an integer's digits, or its description."""
        return _described(value) if abs(value) >= 10**100 else repr(value)


_REPR = _Repr()
_REPR.maxlong = _REPR.maxother = 100
