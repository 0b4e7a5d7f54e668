"""Types of option values, and the options that several subcommands share."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from glgpt.checkpoint.steps import run_of
from glgpt.cli.operation.config_file import OPTION, configured
from glgpt.errors import GlgptError, quoted, written
from glgpt.program.formats import FORMATS

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
LONGEST = 400  # characters of an error
DIGITS = 18  # of a whole number


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, and whose help keeps the line breaks of its example."""

    late: str | None = None  # the optional positional, PROMPT or FILE, that may also stand last, behind options
    _given: Sequence[str] = ()  # the words that were parsed
    most = 0  # words that are no options; one more than `late` takes is the model, as it was once named

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        """As argparse does, which alone takes an optional positional only right behind the one before it."""
        if OPTION in self._option_string_actions:
            try:
                args = configured(args or (), self._option_string_actions)
            except GlgptError as error:
                self.error(str(error))
        self._given = list(sys.argv[1:] if args is None else args)
        found, rest = super().parse_known_args(args, namespace)
        if self.most:
            first = getattr(found, self.late) if self.late else None
            words = [] if first is None else [first]
            plain = rest[1:] if rest[:1] == ["--"] else [text for text in rest if text == "-" or text[:1] != "-"]
            if rest in (plain, ["--", *plain]) and len(words) + len(plain) <= self.most:
                words, rest = words + plain, []
            self._settle(found, words)
        if rest and self._subparsers is None:  # else the main parser reports it, and names its own help
            self.error(self._unknown(rest))
        return found, rest

    def _unknown(self, words: list[str]) -> str:
        return f"unrecognized arguments: {' '.join(words)}{self._closest(words[0])}"

    def _closest(self, option: str) -> str:
        """Returns the option that a mistyped one most resembles, as the end of an error message."""
        name, known = option.partition("=")[0], [o for o in self._option_string_actions if o.startswith("--")]
        longer = [o for o in known if name.startswith("--") and o.startswith(name)]
        close = longer or get_close_matches(name, known, 1, 0.7)
        return f"; did you mean {close[0]}?" if close else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse does; for a value that is not one of the choices, names the closest one first."""
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            close = get_close_matches(str(value), choices, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            listed = f"({hint}choose from {', '.join(choices)})"
            raise argparse.ArgumentError(action, f"invalid choice: {written(value)} {listed}")

    def _settle(self, found: argparse.Namespace, words: list[str]) -> None:
        """Which word is the model and which the prompt or file; `found.hint` says how to write an old form."""
        model = None
        if len(words) > bool(self.late):
            model = words.pop(0)
        elif words and self.late == "prompt" and found.model is None:
            no_prompt = self.most == 2 and found.ids is not None
            model = words.pop() if no_prompt or is_model(words[0]) else None
        if self.late:
            setattr(found, self.late, words[0] if words else None)
        if self.late == "file" and found.file is None:
            self.error("the following arguments are required: FILE")
        found.hint = None
        if model is not None:
            if found.model is not None:
                self.error(f"unrecognized arguments: {model}")
            found.model, found.hint = model, f"name the model as --model {quoted(model)}"

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """As argparse does, which before Python 3.13 takes `--` out of `OPTION=--` too, and leaves an empty list."""
        if action.option_strings and arg_strings == ["--"]:
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value if action.nargs is None else [value]
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        """Ends the program with 2 and one line. For a missing option, names one that may be its misspelling."""
        options = [word for word in self._given if word[:2] == "--" and word != "--"]
        unknown = [word for word in options if word.partition("=")[0] not in self._option_string_actions]
        if message.startswith("the following arguments are required") and unknown:
            message = self._unknown(unknown[:1])
        self.exit(2, f"{self.prog}: error: {quoted(message, LONGEST)} (see {self.prog} --help)\n")


def is_model(word: str) -> bool:
    """Whether a word is the folder of a model, or names a step of a run."""
    try:
        return (Path(word) / "config.json").is_file() or run_of(word) is not None
    except (OSError, ValueError):  # a prompt may be no possible name at all
        return False


def count(text: str) -> int:
    """A whole number from 0."""
    if not text.isdecimal() or len(text) > DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def positive(text: str) -> int:
    """A whole number from 1."""
    if not text.isdecimal() or len(text) > DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def not_negative(text: str) -> float:
    """A number from 0."""
    value = _number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0")
    return value


def above_zero(text: str) -> float:
    """A number above 0."""
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def bias(text: str) -> tuple[int, float]:
    """ID=B: an id from 0, and a number or -inf."""
    name, equals, value = text.partition("=")
    try:
        if equals and (found := int(name)) >= 0 and ((number := float(value)) < math.inf):
            return found, number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not an id and a number, such as 198=-100")


def fraction(text: str) -> float:
    """A number above 0 and at most 1."""
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0 and at most 1")
    return value


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def size(text: str) -> int:
    """A number of bytes: 2GiB, 512MiB, 3e9."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)\s*([a-zA-Z]*)", text)
    if not found or found[2].upper() not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 2GiB or 512MiB")
    value = float(found[1]) * UNITS[found[2].upper()]
    if value >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is more than any memory")
    return int(value)


def ids(text: str) -> list[int]:
    """Token ids: whole numbers between commas or spaces."""
    parts = text.replace(",", " ").split()
    if not all(part.isdecimal() and len(part) <= DIGITS for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids such as 464,3290")
    return [int(part) for part in parts]


def names(text: str) -> list[str]:
    """Names between commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names such as hidden,logits")
    return parts


def device(text: str) -> str:
    """`auto`, `software`, `gpu` or the number of an EGL device."""
    if text not in ("auto", "software", "gpu") and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not auto, software, gpu or the number of an EGL device")
    return text


CONTEXT = "tokens that the caches hold (default: the model's positions, 2048 at most, more where a prompt needs them)"


def add_device_options(
    parser: argparse.ArgumentParser, memory: bool = True, dtype: str | None = "f32", context: str = CONTEXT
) -> None:
    """What every subcommand that draws takes; `memory`: it may refuse a model that needs too much.

    `dtype` is the default of that option; None: f16 of the embedded model, f32 of others, for the command to settle.
    `context` says what that option means.
    """
    group = parser.add_argument_group("device")
    group.add_argument(
        "--device", type=device, default="auto", help="auto, software, gpu, or an EGL device's number (see glgpt info)"
    )
    default = dtype or "f16 of the embedded model, else f32"
    group.add_argument(
        "--dtype",
        choices=tuple(FORMATS),
        default=dtype,
        help=f"how weights are stored (default {default}): f16 halves their memory, q8 quarters it, q4 takes a sixth",
    )
    group.add_argument("--kernel", choices=("auto", "4x4", "4x8", "8x4"), default="auto", help="tile of a product")
    group.add_argument(
        "--fetch", choices=("auto", "texelFetch", "textureLod"), default="auto", help="how texels are got"
    )
    group.add_argument("--storage", choices=("auto", "float", "uint"), default="auto", help="RGBA32F or RGBA32UI")
    group.add_argument("--context", type=positive, metavar="N", help=context)
    if memory:
        text = "refuse a model that needs more, say 2GiB"
        group.add_argument("--max-texture-memory", type=size, metavar="SIZE", help=text)


def device_options(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `LanguageModel.from_pretrained` that `add_device_options` filled in."""
    names = ("device", "dtype", "kernel", "fetch", "storage", "context", "max_texture_memory")
    return {name: getattr(args, name) for name in names if hasattr(args, name)}
