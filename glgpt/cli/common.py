"""Defines functions that commands share: options of a model, a prompt, a device and sampling, and output of results."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from glgpt.checkpoint.generation_config import CHAT_SAMPLING
from glgpt.cli.argument_parser import Parser
from glgpt.cli.option_types import above_zero, bias, count, device, ids, not_negative, positive, seed, share, size
from glgpt.cli.progress import progress
from glgpt.cli.split_options import client_options
from glgpt.errors import ArgumentError, FileError, GlgptError, is_utf8, quoted
from glgpt.gguf.reader import is_gguf
from glgpt.inference.arguments.sampling_options import BatchSamplingKeywords, SamplingOptions
from glgpt.inference.constraints.constraint import Constraint
from glgpt.inference.constraints.grammar import check_grammar
from glgpt.inference.loading import load
from glgpt.inference.model import LanguageModel
from glgpt.program.formats import DTYPES
from glgpt.system.files import named_errors, read_text
from glgpt.system.processors import available_processors
from glgpt.text.tokenizer import GPT2_VOCAB_SIZE

MODEL = (
    "folder with config.json and weights, a .gguf file, RUN@400 for a saved step of a run, or a Hugging Face Hub name "
    "such as gpt2 or OWNER/NAME:FILE.gguf; 'smollm2' is SmolLM2-135M-Instruct, 'shakespeare' is the embedded model"
)
DEVICE = "auto, software (OpenGL on the CPU), gpu, or the number of an EGL device, see glgpt info (default auto)"
DTYPE = "stored for .gguf files, else f32"
CONTEXT = "context length, in tokens (default: the model's, at most 2048; longer if the prompt needs it)"
CHAT_MODEL = "smollm2"
TEMPERATURE = 0.8  # default for texts other than chat answers
BYTE_ORDER_MARK = "\ufeff"  # is removed from the beginning of a text
MAX_SCHEMA_BYTES = 1 << 20
MAX_TEXT_BYTES = 1 << 30  # maximum size of a text that is read at once


def add_model_option(parser: Parser) -> None:
    """Adds `--model`."""
    parser.add_argument("--model", metavar="MODEL", help=f"{MODEL} (default)")


def add_adapter_option(parser: Parser) -> None:
    """Adds `--adapter`."""
    text = "folder of a LoRA adapter in PEFT's format for this model, which is added to the weights"
    parser.add_argument("--adapter", metavar="DIR", help=text)


def add_chat_model_options(parser: Parser) -> None:
    """Adds the positional MODEL of commands whose default is a chat model, and `--model`."""
    parser.late = "name"
    parser.add_argument("name", nargs="?", metavar="MODEL", help=f"{MODEL} (default {CHAT_MODEL})")
    parser.add_argument("--model", metavar="MODEL", help="another way to give MODEL")


def chat_model(args: argparse.Namespace) -> str:
    """Returns the model that MODEL or `--model` names, else the default. Raises GlgptError if both were given."""
    if args.name is not None and args.model is not None:
        raise GlgptError(f"both MODEL {args.name} and --model {args.model} were given; give one of them")
    found: str | None = args.name if args.model is None else args.model
    return CHAT_MODEL if found is None else found


def add_prompt_options(parser: Parser, text: str) -> None:
    """Adds the positional PROMPT, with the help `text`, and `--ids`."""
    parser.late = "prompt"
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help=text)
    parser.add_argument("--ids", type=ids, metavar="ID,ID,...", help="token ids instead of a text, such as 464,3290")


def add_json_option(parser: Parser, text: str = "print the results as JSON") -> None:
    """Adds `--json`."""
    parser.add_argument("--json", action="store_true", help=text)


def add_device_options(
    parser: argparse.ArgumentParser, memory: bool = True, default: str = DTYPE, context: str = CONTEXT
) -> None:
    """Adds the options of a model's format and of the device; with `memory`, also --max-texture-memory.

    `default` is the description of the default of --dtype; `context` is the help of --context.
    """
    group = parser.add_argument_group("model format and device")
    group.add_argument("--device", type=device, default="auto", help=DEVICE)
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        help=f"format of the weights on the GPU (default {default}); compared with f32, f16 takes half the memory, "
        "q8 (8-bit quantization) a quarter, q4 (4-bit) a fifth; stored keeps the formats of the file",
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
    group.add_argument(
        "--cache-dtype",
        choices=("auto", "f32", "f16"),
        default="auto",
        help="format of the keys and values of earlier tokens; f16 takes half the memory (default auto: f16 in pages "
        "with quantized weights, else f32)",
    )


def device_options(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the values of `add_device_options` as keyword arguments of `glgpt.load`."""
    names = ("device", "dtype", "kernel", "fetch", "storage", "cache_dtype", "context", "max_texture_memory")
    return {name: getattr(args, name) for name in names if hasattr(args, name)}


def add_sampling_options(p: Parser, chat: bool = False) -> None:
    """Adds the options that determine how the next token is chosen; with `chat`, the defaults are the model's."""
    default = ", ".join(f"{name} {value}" for name, value in CHAT_SAMPLING.items()).replace("_", "-")
    g = p.add_argument_group("sampling", f"Defaults are those in the model's files, else {default}." if chat else None)
    g.add_argument(
        "--temperature", type=not_negative, default=None if chat else TEMPERATURE, metavar="T",
        help="higher is more varied; 0 always takes the most likely token, greedy decoding"
        + ("" if chat else f" (default {TEMPERATURE})"),
    )  # fmt: skip
    g.add_argument("--top-k", type=count, metavar="K", help="sample from the K most likely tokens; 0 is off")
    g.add_argument(
        "--top-p", type=share, metavar="P",
        help="nucleus sampling: sample from the most likely tokens whose probabilities add up to P; 1 is off, 0 is "
        "greedy",
    )  # fmt: skip
    g.add_argument(
        "--min-p", type=share, metavar="P",
        help="sample from tokens at least P times as likely as the most likely one; 0 is off",
    )  # fmt: skip
    g.add_argument(
        "--repetition-penalty", type=above_zero, metavar="R",
        help="penalize tokens that are already in the text: 1 is off, higher is stronger (default 1)",
    )  # fmt: skip
    g.add_argument(
        "--logit-bias", type=bias, action="append", metavar="ID=B",
        help="add B to the logit of token ID, such as 198=-2.5; 198=-inf forbids the token; may repeat",
    )  # fmt: skip
    g.add_argument("--seed", type=seed, metavar="S", help="random seed (default: a new one, printed at the end)")
    g = p.add_argument_group("constrained text")
    g.add_argument("--json-schema", metavar="FILE", help="write JSON that this schema validates")
    g.add_argument("--regex", metavar="TEXT", help="write text that this regular expression matches as a whole")
    text = "write one of the texts of all --choice options; repeat the option for each text"
    g.add_argument("--choice", action="append", metavar="TEXT", help=text)


def sampling_options(args: argparse.Namespace) -> BatchSamplingKeywords:
    """Returns the sampling options that were given, except the seed, as keyword arguments of `generate`.

    Raises GlgptError for a value out of range, including the seed, and for several constraints or an unusable one.
    """
    options: dict[str, Any] = {
        "temperature": args.temperature,
        "top_k": args.top_k,
        "top_p": args.top_p,
        "min_p": args.min_p,
        "repetition_penalty": args.repetition_penalty,
        "logit_bias": dict(args.logit_bias or ()),
        "constraint": _constraint(args),
    }
    # None switches an option off, even if the model recommends a value for it.
    off = {name: None for name in ("top_k", "min_p") if options[name] == 0}
    chosen = {name: value for name, value in options.items() if value is not None} | off
    given = cast("BatchSamplingKeywords", chosen)
    SamplingOptions(**given, seed=args.seed)
    return given


def _constraint(args: argparse.Namespace) -> Constraint | None:
    """Returns the constraint of the text, or None. Raises GlgptError for several constraints or an unusable one."""
    given = {"--json-schema": args.json_schema, "--regex": args.regex, "--choice": args.choice}
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise ArgumentError(f"{' and '.join(names)} cannot be combined; give one of them")
    if not names:
        return None
    if args.json_schema is None:
        found = Constraint.choice(args.choice) if args.regex is None else Constraint.regex(args.regex)
        check_grammar(found)
        return found
    path = Path(args.json_schema)
    try:
        found = Constraint.json_schema(read_text(path, MAX_SCHEMA_BYTES))
        check_grammar(found)
    except ArgumentError as error:
        raise FileError(f"{quoted(path, 300)}: {error}") from None
    return found


def draw_in_one_thread(args: argparse.Namespace) -> None:
    """Makes llvmpipe (software OpenGL) draw in the calling thread if this is faster for one text.

    Call it before a model is opened. With at most two processors and quantised weights, llvmpipe's threads wait for
    each other longer than a matrix product takes. If the environment variable LP_NUM_THREADS is set, it takes
    precedence.
    """
    gguf = args.model is not None and (args.model == CHAT_MODEL or is_gguf(Path(args.model)))
    integers = gguf if args.dtype is None else args.dtype in ("stored", "q8", "q4")
    if integers and available_processors() <= 2:
        os.environ.setdefault("LP_NUM_THREADS", "0")


@contextmanager
def open_model(args: argparse.Namespace) -> Iterator[LanguageModel]:
    """Opens the model that the arguments name, with a progress bar while it loads."""
    with progress("loading", "B") as show:
        options = {"adapter": getattr(args, "adapter", None), **device_options(args), **client_options(args)}
        model = load(args.model, progress=show, **options)
    with model:
        yield model


def read_input(name: str) -> str:
    """Returns the text of a UTF-8 file, or of stdin for `-`, without a byte order mark.

    Raises GlgptError if stdin is closed, or if the text is not UTF-8.
    """
    if name != "-":
        return read_text(Path(name), MAX_TEXT_BYTES).removeprefix(BYTE_ORDER_MARK)
    if sys.stdin is None:
        raise GlgptError("stdin is closed; give the text as an argument or a file")
    try:
        return sys.stdin.buffer.read().decode("utf-8").removeprefix(BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise GlgptError(f"stdin is not UTF-8 text: {error.reason} at byte {error.start}") from error


def prompt_text(args: argparse.Namespace, default: str | None = None) -> str | None:
    """Returns the prompt in the arguments (else `default`), or reads it from stdin for `-`; None if `--ids` is given.

    Raises GlgptError if a prompt and `--ids` are given, and for a prompt that is empty or not UTF-8.
    """
    if args.ids is not None:
        if args.prompt is not None:
            raise GlgptError("both a prompt and --ids were given; give one of them")
        return None
    text = default if args.prompt is None else read_input("-") if args.prompt == "-" else str(args.prompt)
    if not text:
        raise GlgptError("the prompt is empty; give some text, or token ids with --ids")
    if not is_utf8(text):
        raise GlgptError("the prompt is not UTF-8 text")
    return text


def encode(model: LanguageModel, text: str | None, ids: list[int] | None) -> list[int]:
    """Returns the token ids of `text`, or `ids` if `text` is None.

    Raises GlgptError if `text` is given and the model has no tokenizer.
    """
    if text is None:
        return ids or []
    if model.tokenizer is None:
        own = model.config.vocab_size == GPT2_VOCAB_SIZE
        why = " files, and GPT-2's tokenizer is not cached and cannot be downloaded" if own else ""
        raise GlgptError(f"{model.name} has no tokenizer{why}; give token ids with --ids")
    return model.tokenizer.prompt(text)


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun, such as "1 token" and "2 tokens"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def speed(tokens: int, seconds: float) -> str:
    """Returns the end of a line about tokens, such as " at 12.3/s"; "" for one token or none, or if no time passed."""
    return f" at {tokens / seconds:.1f}/s" if tokens > 1 and seconds else ""


def report(args: argparse.Namespace, results: Any, text: str) -> None:
    """Prints the results as JSON with --json, else as text."""
    with named_errors(Path("stdout")):
        print(json.dumps(finite(results), indent=1, ensure_ascii=False, allow_nan=False) if args.json else text)


def finite(results: Any) -> Any:
    """Returns a copy in which None replaces infinities and NaN, because JSON has neither."""
    if isinstance(results, dict):
        return {key: finite(value) for key, value in results.items()}
    if isinstance(results, (list, tuple)):
        return [finite(value) for value in results]
    return None if isinstance(results, float) and not math.isfinite(results) else results
