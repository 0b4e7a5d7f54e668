"""The argument parser, the types of option values, and the options that several subcommands share."""

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
DIGITS = 18  # of an integer


class Parser(argparse.ArgumentParser):
    """An argument parser that prints errors as one line and keeps the line breaks of descriptions and examples."""

    late: str | None = None  # the optional positional, PROMPT or FILE, that may also follow options
    _given: Sequence[str] = ()  # the words that were parsed
    most = 0  # maximum number of positional words; one more than `late` takes is the model, as an old form

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        """Parses like argparse, and also accepts an optional positional argument after options."""
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
        """Returns the end of an error message that suggests the option closest to a mistyped one; "" if none is."""
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

    def _settle(self, found: argparse.Namespace, words: list[str]) -> None:
        """Assigns positional words to the model and to the prompt or file; sets `found.hint` for an old form."""
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
        """Converts like argparse, which before Python 3.13 drops the `--` of `OPTION=--` and leaves an empty list."""
        if action.option_strings and arg_strings == ["--"]:
            value = self._get_value(action, "--")
            self._check_value(action, value)
            return value if action.nargs is None else [value]
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        """Exits with 2 and a one-line message. If a required option is missing, reports a misspelt one instead."""
        options = [word for word in self._given if word[:2] == "--" and word != "--"]
        unknown = [word for word in options if word.partition("=")[0] not in self._option_string_actions]
        if message.startswith("the following arguments are required") and unknown:
            message = self._unknown(unknown[:1])
        self.exit(2, f"{self.prog}: error: {quoted(message, LONGEST)} (see {self.prog} --help)\n")


def is_model(word: str) -> bool:
    """True if a word names a model's folder or a step of a run."""
    try:
        return (Path(word) / "config.json").is_file() or run_of(word) is not None
    except (OSError, ValueError):  # a prompt may not be a valid file name
        return False


def add_command(sub: Any, name: str, text: str, examples: str, description: str = "") -> Parser:
    """Adds a subcommand: its one-line help, examples (one per line, perhaps with `  # comment`) and a description."""
    lines = [line.partition("  # ") for line in examples.split("\n")]
    width = max((len(command) for command, comment, _ in lines if comment), default=0)
    shown = [command.ljust(width) + comment + text if comment else command for command, comment, text in lines]
    command: Parser = sub.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}." + (f"\n\n{description}" if description else ""),
        epilog="\n  ".join(["examples:", *shown]),
        allow_abbrev=False,
    )
    return command


def count(text: str) -> int:
    """Parses a non-negative integer."""
    if not text.isdecimal() or len(text) > DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a non-negative integer")
    return int(text)


def positive(text: str) -> int:
    """Parses a positive integer."""
    if not text.isdecimal() or len(text) > DIGITS or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def not_negative(text: str) -> float:
    """Parses a finite number of at least 0."""
    value = _number(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is negative; it must be 0 or more")
    return value


def above_zero(text: str) -> float:
    """Parses a finite number above 0."""
    value = _number(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def bias(text: str) -> tuple[int, float]:
    """Parses ID=B: a token id, and a number or -inf."""
    name, equals, value = text.partition("=")
    try:
        if equals and (found := int(name)) >= 0 and ((number := float(value)) < math.inf):
            return found, number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a token id and a number, such as 198=-100")


def fraction(text: str) -> float:
    """Parses a number above 0 and at most 1."""
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
    """Parses a size in bytes: 2GiB, 512MiB, 3e9."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)\s*([a-zA-Z]*)", text)
    if not found or found[2].upper() not in UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 2GiB or 512MiB")
    value = float(found[1]) * UNITS[found[2].upper()]
    if value >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is too large; a size is below 2^63 bytes")
    return int(value)


def ids(text: str) -> list[int]:
    """Parses token ids separated by commas or spaces."""
    parts = text.replace(",", " ").split()
    if not all(part.isdecimal() and len(part) <= DIGITS for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids such as 464,3290")
    return [int(part) for part in parts]


def names(text: str) -> list[str]:
    """Parses names separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of names such as hidden,logits")
    return parts


DEVICE = "auto, software (OpenGL on the CPU), gpu, or the number of an EGL device, see glgpt info (default auto)"


def device(text: str) -> str:
    """Checks a device: `auto`, `software`, `gpu` or the number of an EGL device."""
    if text not in ("auto", "software", "gpu") and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not auto, software, gpu or the number of an EGL device")
    return text


CONTEXT = "context length, in tokens (default: the model's, at most 2048; longer if the prompt needs it)"


def add_device_options(
    parser: argparse.ArgumentParser, memory: bool = True, dtype: str | None = "f32", context: str = CONTEXT
) -> None:
    """Adds the options of every subcommand that uses the GPU; with `memory`, also --max-texture-memory.

    `dtype` is the default of --dtype; with None the command chooses: f16 for the embedded model, f32 for others.
    `context` is the help of --context.
    """
    group = parser.add_argument_group("model format and device")
    group.add_argument("--device", type=device, default="auto", help=DEVICE)
    default = dtype or "f16 for the embedded model, else f32"
    group.add_argument(
        "--dtype",
        choices=tuple(FORMATS),
        default=dtype,
        help=f"format of the weights on the GPU (default {default}); compared with f32, f16 takes half the memory, "
        "q8 (8-bit quantization) a quarter, q4 (4-bit) a fifth",
    )
    group.add_argument("--context", type=positive, metavar="N", help=context)
    if memory:
        text = "refuse to load a model that needs more texture memory than this, such as 2GiB (default: no limit)"
        group.add_argument("--max-texture-memory", type=size, metavar="SIZE", help=text)
    group.add_argument(
        "--kernel",
        choices=("auto", "4x4", "4x8", "8x4"),
        default="auto",
        help="tile size of the matrix-multiplication shaders (default auto: the fastest, measured once per driver)",
    )
    group.add_argument(
        "--fetch",
        choices=("auto", "texelFetch", "textureLod"),
        default="auto",
        help="GLSL function that reads texels (default auto: the faster one)",
    )
    group.add_argument(
        "--storage",
        choices=("auto", "float", "uint"),
        default="auto",
        help="texture format of f32 values: float (RGBA32F) or uint (RGBA32UI), for GPUs that cannot render to float "
        "textures (default auto)",
    )


def device_options(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of `add_device_options` as keyword arguments of `LanguageModel.from_pretrained`."""
    names = ("device", "dtype", "kernel", "fetch", "storage", "context", "max_texture_memory")
    return {name: getattr(args, name) for name in names if hasattr(args, name)}
