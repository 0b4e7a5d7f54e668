"""Exports the page of `make demo-chat` for tests."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from glgpt.cli import main
from glgpt.system.files import data_path

# `-o`: make does not run these three targets, since a test must not install packages.
MAKE = ["make", "--no-print-directory", *(word for name in ("setup", "viewer", "models") for word in ("-o", name))]


def demo_chat_page(out: Path) -> tuple[str, list[str]]:
    """Returns the commands of `make demo-chat-page`: the one that makes the folder, and the arguments of `glgpt`."""
    command = [*MAKE, "-n", "demo-chat-page", f"OUT={out}"]
    root = data_path("Makefile").parent
    folder, export = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()
    program, *arguments = shlex.split(export)
    assert program == ".venv/bin/glgpt"
    return folder, arguments


def write_chat_page(out: Path) -> None:
    """Runs the commands of `make demo-chat-page`. Raises CalledProcessError or AssertionError if one fails."""
    folder, arguments = demo_chat_page(out)
    subprocess.run(folder, shell=True, check=True)
    assert main(arguments) == 0
