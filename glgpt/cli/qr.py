"""Prints an address on a terminal as a QR code for a phone."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import segno

QUIET = 2  # light modules around the code; the standard requires four, but phones read it with two
HALVES = " ▀▄█"  # each shows two modules (squares of the code), one above the other; dark: none, upper, lower, both
COLOURS, PLAIN = "\x1b[38;5;16;48;5;231m", "\x1b[0m"  # black on white, regardless of the terminal's colours


def qr_lines(text: str) -> list[str]:
    """Returns the lines of a QR code. A line shows two rows of modules, black on white, with escape sequences."""
    rows = [list(row) for row in segno.make_qr(text, error="l").matrix_iter(border=QUIET)]
    if len(rows) % 2:
        rows.append([0] * len(rows[0]))
    pairs = zip(rows[::2], rows[1::2], strict=True)
    return [
        COLOURS + "".join(HALVES[(a > 0) + 2 * (b > 0)] for a, b in zip(upper, lower, strict=True)) + PLAIN
        for upper, lower in pairs
    ]


def print_qr(text: str, stream: TextIO | None = None) -> None:
    """Prints a QR code of a text if the stream (default: stdout) is a terminal that is wide enough and has `HALVES`."""
    stream = stream or sys.stdout
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return
    lines = qr_lines(text)
    try:
        HALVES.encode(stream.encoding or "ascii")
        width = os.get_terminal_size(stream.fileno()).columns or 80  # 0: the terminal does not report its width
    except (UnicodeEncodeError, OSError):
        return
    if len(lines[0]) - len(COLOURS + PLAIN) <= width:
        print("\n".join(lines), file=stream, flush=True)
