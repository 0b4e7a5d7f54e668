"""Tests the QR code on a terminal: its content, and when it is not printed."""

from __future__ import annotations

import io
import os

import pytest
import segno

from glgpt.cli.qr import COLOURS, HALVES, PLAIN, QUIET, print_qr, qr_lines

ADDRESS = "http://192.168.1.23:8042/"


@pytest.mark.parametrize("text", [ADDRESS, "http://[2001:db8::1]:8042/train/#eyJzZXNzaW9uIjoiYSJ9"])
def test_the_lines_are_the_code(text: str) -> None:
    """Fails if a module (square) of the QR code is wrong, or the light border is incomplete."""
    lines = [line.removeprefix(COLOURS).removesuffix(PLAIN) for line in qr_lines(text)]
    assert len({len(line) for line in lines}) == 1 and all(line[0] == line[-1] == " " for line in lines)
    halves = [[HALVES.index(c) for c in line] for line in lines]
    rows = [[value >> half & 1 for value in line] for line in halves for half in (0, 1)]
    matrix = [[int(dark > 0) for dark in row] for row in segno.make_qr(text, error="l").matrix]
    assert [row[QUIET:-QUIET] for row in rows[QUIET : QUIET + len(matrix)]] == matrix
    assert not any(map(any, rows[:QUIET] + rows[QUIET + len(matrix) :]))


@pytest.mark.parametrize(
    ("columns", "encoding", "shown"), [(80, "utf-8", True), (20, "utf-8", False), (80, "ascii", False)]
)
def test_it_is_printed_where_a_terminal_can_show_it(
    columns: int, encoding: str, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(stream, "fileno", lambda: 1)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((columns, 24)))
    monkeypatch.setenv("TERM", "xterm")
    print_qr(ADDRESS, stream)
    assert not stream.buffer.getvalue()  # type: ignore[attr-defined]
    monkeypatch.setattr(stream, "isatty", lambda: True)
    print_qr(ADDRESS, stream)
    stream.flush()
    assert bool(stream.buffer.getvalue()) == shown  # type: ignore[attr-defined]
