"""Checks that each command of the command line is defined in a separate file or folder."""

from __future__ import annotations

import argparse
import pkgutil
from importlib import import_module

import pytest

from glgpt.cli import commands
from glgpt.cli.parser import COMMANDS, MODULES, build_parser


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Returns the parsers of a command's subcommands by name."""
    found = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


def test_every_file_of_a_command_is_on_the_command_line() -> None:
    files = {module.name for module in pkgutil.iter_modules(commands.__path__)}
    assert files == {MODULES.get(command, command) for command in COMMANDS}
    assert list(subcommands(build_parser())) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_file_of_a_command_runs_it(name: str) -> None:
    """Checks that a command and its subcommands run functions of the command's file or folder."""
    [command] = subcommands(build_parser(name)).values()  # only the parser of this command
    module = import_module(f"glgpt.cli.commands.{MODULES.get(name, name)}")
    runs = [one.get_default("run") for one in subcommands(command).values() or [command]]
    assert runs
    for run in runs:
        assert callable(run) and run.__module__.startswith(module.__name__), f"glgpt {name} runs {run}"
