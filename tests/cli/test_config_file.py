"""Tests `--config FILE`, which reads options from TOML."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.command_line import Capture, refused

from glgpt.cli.parser import build_parser

GOOD = """
listen = "0.0.0.0:9000"
blocks = "+4-5"
sessions = 3
idle = 0.5
json = true
tls = ["a.pem", "a.key"]
origin = ["https://a.example", "https://b.example"]
token = "-starts-with-a-dash"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "server.toml"


def test_options_come_from_a_file_and_the_command_line_goes_before(file: Path) -> None:
    file.write_text(GOOD)
    parse = build_parser().parse_args
    args = parse(["split", "serve", "--config", str(file)])
    assert (args.listen, args.blocks, args.sessions, args.idle, args.json) == ("0.0.0.0:9000", "+4-5", 3, 0.5, True)
    assert args.tls == ["a.pem", "a.key"] and args.token == "-starts-with-a-dash"
    assert args.origin == ["https://a.example", "https://b.example"]
    args = parse(["split", "serve", "--sessions=7", f"--config={file}", "--origin", "https://c.example"])
    assert args.sessions == 7 and args.origin == ["https://c.example"] and args.blocks == "+4-5"
    file.write_text("json = false")
    assert parse(["split", "serve", "--config", str(file)]).json is False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listn = 1", "unknown option 'listn'; did you mean listen?"),
        ("config = 'x'", "unknown option 'config'"),
        ("help = true", "unknown option 'help'"),
        ("[split]\nlisten = 1", "unknown option 'split'"),
        ("json = 1", "json must be true or false, not 1"),
        ("listen = true", "listen must be a string or a number"),
        ("listen = [1]", "listen must be a string or a number"),
        ("origin = [[1]]", "origin must be a string or a number, or a list of them"),
        ("listen = 2026-11-25", "listen must be a string or a number"),
        ("sessions = 0", "argument --sessions: '0' is not"),
        ("tls = ['a.pem']", "argument --tls: expected 2 arguments"),
        ("listen = ", "is not TOML: Invalid value"),
        ("a = " + "[" * 100_000, "is not TOML"),
        ("\x00", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused(file: Path, text: str, said: str, capsys: Capture) -> None:
    file.write_text(text)
    assert said in refused(capsys, "split", "serve", "--config", str(file))


def test_a_file_that_is_none_is_refused(file: Path, capsys: Capture) -> None:
    assert "server.toml is missing" in refused(capsys, "split", "serve", "--config", str(file))
    file.write_bytes(b"\xff")
    assert "is not UTF-8 text" in refused(capsys, "split", "serve", "--config", str(file))
    assert "given 2 times" in refused(capsys, "split", "serve", f"--config={file}", "--config", str(file))
    assert "expected one argument" in refused(capsys, "split", "serve", "--config")
