"""An address as a QR code on a terminal, for a phone to read."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import segno

QUIET = 2  # light modules around a code; on a dark terminal, fewer than its standard's four are read as well
HALVES = " ▀▄█"  # by which of two modules below each other are dark: none, the upper, the lower, both
COLOURS, PLAIN = "\x1b[38;5;16;48;5;231m", "\x1b[0m"  # black on white, whatever the terminal's own colours are


def qr_lines(text: str) -> list[str]:
    """A QR code of a text, two rows of modules a line, black on white by the terminal's escape sequences."""
    rows = [list(row) for row in segno.make_qr(text, error="l").matrix_iter(border=QUIET)]
    if len(rows) % 2:
        rows.append([0] * len(rows[0]))
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return [
        COLOURS + "".join(HALVES[(a > 0) + 2 * (b > 0)] for a, b in zip(upper, lower, strict=True)) + PLAIN
        for upper, lower in pairs
    ]


def print_qr(text: str, stream: TextIO | None = None) -> None:
    """Prints a QR code of a text where a person sees it: on a terminal that has the characters and the room for it."""
    stream = stream or sys.stdout
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return
    lines = qr_lines(text)
    try:
        HALVES.encode(stream.encoding or "ascii")
        room = os.get_terminal_size(stream.fileno()).columns or 80  # 0: a terminal that does not know
    except (UnicodeEncodeError, OSError):
        return
    if len(lines[0]) - len(COLOURS + PLAIN) <= room:
        print("\n".join(lines), file=stream, flush=True)
