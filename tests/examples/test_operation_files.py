"""Tests that the files in examples/operation use only options that the commands have."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from glgpt.cli.parser import build_parser

FOLDER = Path(__file__).parents[2] / "examples/operation"


@pytest.mark.parametrize(
    ("name", "words"), [("split", ["split", "serve"]), ("federate", ["federate", "serve", "x.txt"])]
)
def test_configurations(name: str, words: list[str]) -> None:
    args = build_parser().parse_args([*words, "--config", str(FOLDER / f"{name}.toml")])
    assert args.log_format == "json" and args.metrics.startswith("127.0.0.1:904")


@pytest.mark.parametrize("name", ["split", "federate"])
def test_units_start_commands_that_parse(name: str) -> None:
    unit = (FOLDER / f"glgpt-{name}.service").read_text()
    command = shlex.split(re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0])
    assert command.pop(0) == "/opt/glgpt/bin/glgpt"
    command[command.index("--config") + 1] = str(FOLDER / f"{name}.toml")
    assert callable(build_parser().parse_args(command).run)


def test_what_nginx_and_docker_are_told_to_run_parses() -> None:
    lines = re.findall(
        r"^# .*?(glgpt (?:serve|split|federate) [^\n]*?)(?:  +.*)?$",
        "\n".join(path.read_text() for path in (FOLDER / "nginx.conf", FOLDER / "Dockerfile")),
        re.MULTILINE,
    )
    assert len(lines) == 4
    for line in lines:
        words = ["out/run" if word == "…" else word for word in shlex.split(line.replace("serve …", "serve --out …"))]
        assert callable(build_parser().parse_args(words[1:]).run)
