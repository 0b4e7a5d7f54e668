"""Defines the class of argument parsers, and functions that add commands to a parser."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn, TypeAlias

from glgpt.cli.operation.config_file import OPTION, configured
from glgpt.errors import GlgptError, quoted, written

MAX_ERROR_CHARACTERS = 400
Run: TypeAlias = Callable[[argparse.Namespace], int]  # runs a command and returns its exit code
Subparsers: TypeAlias = "argparse._SubParsersAction[Parser]"


class Parser(argparse.ArgumentParser):
    """An argument parser that prints errors as one line and keeps the line breaks of descriptions and examples."""

    late: str | None = None  # the optional positional, such as `prompt`, that may also follow options
    _given: Sequence[str] = ()  # the words that were parsed

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        """Parses like argparse, but reads `--config`, and accepts an optional positional argument after options."""
        if OPTION in self._option_string_actions:
            try:
                args = configured(args or (), self._option_string_actions)
            except GlgptError as error:
                self.error(str(error))
        self._given = list(sys.argv[1:] if args is None else args)
        found, rest = super().parse_known_args(args, namespace)
        if self.late and getattr(found, self.late) is None:
            rest = self._take_late(found, rest)
        # Reported here, because an error of the main parser would point to `glgpt --help`, not to the command's help.
        if rest and self._subparsers is None:
            self.error(self._unknown(rest))
        return found, rest

    def _unknown(self, words: list[str]) -> str:
        return f"unrecognized arguments: {' '.join(words)}{self._closest(words[0])}"

    def _closest(self, option: str) -> str:
        """Returns the end of an error message that suggests a similar option; "" if there is none."""
        name, known = option.partition("=")[0], [o for o in self._option_string_actions if o.startswith("--")]
        longer = [o for o in known if name.startswith("--") and o.startswith(name)]
        close = longer or get_close_matches(name, known, 1, 0.7)
        return f"; did you mean {close[0]}?" if close else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Checks like argparse; the error for an unknown choice suggests the closest one first."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            close = get_close_matches(str(value), choices, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            listed = f"({hint}choose from {', '.join(choices)})"
            raise argparse.ArgumentError(action, f"invalid choice: {written(value)} {listed}")

    def _take_late(self, found: argparse.Namespace, rest: list[str]) -> list[str]:
        """Assigns a single word that follows options to the positional `late`; returns the words that are left.

        Exits with an error if `late` is FILE and no word follows the options: FILE is required wherever it is `late`.
        """
        words = rest[1:] if rest[:1] == ["--"] else [text for text in rest if text == "-" or text[:1] != "-"]
        if len(words) == 1 and rest in (words, ["--", *words]):
            setattr(found, str(self.late), words[0])
            return []
        if self.late == "file" and not words:
            self.error("the following arguments are required: FILE")
        return rest

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Converts like argparse, but keeps the `--` of `OPTION=--`, which argparse drops before Python 3.13."""
        if action.option_strings and arg_strings == ["--"]:
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value if action.nargs is None else [value]
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        """Exits with 2 and a one-line message. If an option is unknown, reports it instead of a missing argument."""
        options = [word for word in self._given if word[:2] == "--" and word != "--"]
        unknown = [word for word in options if word.partition("=")[0] not in self._option_string_actions]
        if message.startswith("the following arguments are required") and unknown:
            message = self._unknown(unknown[:1])
        self.exit(2, f"{self.prog}: error: {quoted(message, MAX_ERROR_CHARACTERS)} (see {self.prog} --help)\n")


def add_command(sub: Subparsers, name: str, run: Run, text: str, examples: str, description: str = "") -> Parser:
    """Adds a command with a one-line help, examples (one per line, perhaps with `  # comment`) and a description."""
    command = _added(sub, name, text, examples, description)
    command.set_defaults(run=run)
    return command


def add_group(sub: Subparsers, name: str, text: str, examples: str, description: str = "") -> Subparsers:
    """Adds a command that consists of subcommands; returns the object to which they are added."""
    group = _added(sub, name, text, examples, description)
    return group.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)


def _added(sub: Subparsers, name: str, text: str, examples: str, description: str) -> Parser:
    lines = [line.partition("  # ") for line in examples.split("\n")]
    width = max((len(command) for command, comment, _ in lines if comment), default=0)
    shown = [command.ljust(width) + comment + text if comment else command for command, comment, text in lines]
    return sub.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}." + (f"\n\n{description}" if description else ""),
        epilog="\n  ".join(["examples:", *shown]),
        allow_abbrev=False,
    )
