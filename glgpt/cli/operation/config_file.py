"""`--config FILE`: reads options of a command from a TOML file; the command line takes precedence."""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glgpt.errors import ArgumentError, quoted, written
from glgpt.system.files import read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OPTION = "--config"
MAX_FILE_BYTES = 1 << 20  # maximum size of a configuration file


def configured(args: Sequence[str], options: dict[str, argparse.Action]) -> list[str]:
    """Returns the arguments, preceded by the options of the file that `--config` names, if any.

    `options` maps option names to a parser's actions. An option of the file is left out if the command line has it.
    Raises ArgumentError if the file is not TOML, or has an unknown option or a value of the wrong type. Raises
    FileError if the file cannot be read.
    """
    words = list(args[: args.index("--")] if "--" in args else args)
    files = [word.partition("=")[2] for word in words if word.startswith(f"{OPTION}=")]
    files += [value for word, value in itertools.pairwise(words) if word == OPTION]
    if not files:
        return list(args)
    if len(files) > 1:
        raise ArgumentError(f"{OPTION} is given {len(files)} times; give it once")
    name = f"{OPTION} {quoted(files[0], 300)}"
    try:
        values = tomllib.loads(read_text(Path(files[0]).expanduser(), MAX_FILE_BYTES))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ArgumentError(f"{name} is not TOML: {quoted(error or 'nested too deeply', 160)}") from None
    given = {word.partition("=")[0] for word in words}
    found: list[str] = []
    for key, value in values.items():
        action = options.get(f"--{key}")
        if action is None or key in ("config", "help"):
            raise ArgumentError(f"{name}: unknown option {written(key)}{_meant(key, options)}")
        if given.isdisjoint(action.option_strings):
            found += _words(f"{name}: {key}", f"--{key}", action, value)
    return [*found, *args]


def _meant(key: str, options: dict[str, argparse.Action]) -> str:
    known = [name[2:] for name in options if name.startswith("--") and name not in (OPTION, "--help")]
    close = difflib.get_close_matches(key.replace("_", "-"), known, 1)
    return f"; did you mean {close[0]}?" if close else ""


def _words(where: str, option: str, action: argparse.Action, value: Any) -> list[str]:
    """Returns the command-line words that set an option to this value."""
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ArgumentError(f"{where} must be true or false, not {written(value)}")
        return [option] if value else []
    many = isinstance(action.nargs, int) or isinstance(action, argparse._AppendAction)
    items = value if isinstance(value, list) and many else [value]
    if not all(isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in items):
        raise ArgumentError(f"{where} must be a string or a number{', or a list of them' if many else ''}")
    if isinstance(action.nargs, int):
        return [option, *map(str, items)]
    return [f"{option}={item}" for item in items]
