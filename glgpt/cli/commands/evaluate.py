"""`glgpt eval`: measures a model on a text."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from glgpt.checkpoint.steps import step_folder
from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.common import (
    add_adapter_option,
    add_device_options,
    add_json_option,
    add_model_option,
    counted,
    device_options,
    open_model,
    read_input,
    report,
)
from glgpt.cli.option_types import count, positive
from glgpt.cli.progress import progress
from glgpt.errors import FileError, GlgptError, quoted
from glgpt.gguf.model_files import CONFIG
from glgpt.inference.model import LanguageModel
from glgpt.inspection.evaluate import evaluate
from glgpt.inspection.format_comparison import compare_formats
from glgpt.program.formats import DTYPES
from glgpt.scoring.suite import MAX_TOKENS, Texts, as_csv, render, score, texts_of_run
from glgpt.text.files import Text
from glgpt.training.run_folder import RECORD


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "eval",
        run,
        "measure a model's loss and perplexity on a text file",
        "glgpt eval play.txt --model runs/play --window 256\n"
        "glgpt eval play.txt --model gpt2 --dtype q4 --compare-to f32\n"
        "glgpt eval runs/play --suite\n"
        "glgpt eval held.txt --model gpt2 --suite --training play.txt --json",
        "Prints nats per token, bits per byte and perplexity. --compare-to prints the loss with weights in the format\n"
        "of --dtype and in another format, the KL divergence between the two, and how often the most likely token\n"
        "is the same. --suite also prints accuracy, calibration, and how much of a sample is copied from the training\n"
        "text, and compares the model with chance, n-gram models and the embedded model.",
    )
    p.late = "file"
    p.add_argument(
        "file", nargs="?", metavar="FILE",
        help="UTF-8 text, or - to read it from stdin; with --suite also the folder of a run",
    )  # fmt: skip
    add_model_option(p)
    add_adapter_option(p)
    p.add_argument(
        "--window", type=positive, metavar="N", help="maximum context of a prediction, in tokens (default: the model's)"
    )
    p.add_argument("--compare-to", choices=DTYPES, help="format of weights to compare --dtype with, such as f32")
    g = p.add_argument_group("suite")
    text = "also print accuracy, calibration and copied text; compare with chance, n-gram models and the embedded model"
    g.add_argument("--suite", action="store_true", help=text)
    g.add_argument(
        "--training", action="append", metavar="FILE",
        help="the model's training text, for the n-gram models; may repeat (not for a run, whose text is known)",
    )  # fmt: skip
    g.add_argument(
        "--tokens", type=count, metavar="N", help=f"maximum tokens to score; 0 for all (default {MAX_TOKENS})"
    )
    g.add_argument("--csv", action="store_true", help="print CSV, one line for each predictor")
    add_json_option(p)
    add_device_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt eval`."""
    if args.suite:
        return _run_suite(args)
    if args.csv or args.training or args.tokens is not None:
        raise GlgptError("--csv, --tokens and --training need --suite")
    _check_file(args.file)
    text = read_input(args.file)
    if args.compare_to:
        return _compare_formats(args, text)
    with open_model(args) as model, progress("evaluating", "token") as show:
        result = evaluate(model, text, args.window, show)
    report(
        args,
        asdict(result),
        f"{result.nats_per_token:.4f} nats/token, {result.bits_per_byte:.4f} bits/byte, perplexity "
        f"{result.perplexity:.2f}\n{counted(result.tokens, 'token')} predicted, window {result.window}, "
        f"{result.tokens_per_s:.0f} tokens/s",
    )
    return 0


def _check_file(name: str) -> None:
    """Raises FileError if FILE is a model or another folder, or does not exist. The message has the right command."""
    if name == "-":  # stdin
        return
    shown = quoted(name, 300)
    folder = Path(name) if Path(name).is_dir() else step_folder(name)
    if folder and (folder / CONFIG).is_file():
        remedy = f"glgpt eval FILE --model {shown} evaluates it on a text"
        if (folder / RECORD).is_file():
            own = f"glgpt eval {shown} --suite scores it on its held-back text"
            raise FileError(f"{shown} is a run, not a text file; {own}, and {remedy}")
        raise FileError(f"{shown} is a model, not a text file; {remedy}")
    if folder:
        raise FileError(f"{shown} is a folder; give a text file: glgpt eval FILE --model MODEL")
    if not Path(name).exists():
        raise FileError(f"text file {shown} does not exist; the command is glgpt eval FILE --model MODEL")


def _compare_formats(args: argparse.Namespace, text: str) -> int:
    compared = argparse.Namespace(**vars(args) | {"dtype": args.compare_to})
    with open_model(args) as model, open_model(compared) as other, progress("evaluating", "token") as show:
        found = compare_formats(model, other, text, args.window, show)
    report(
        args,
        asdict(found),
        f"{found.nats_per_token:.4f} nats/token in {found.dtype}, {found.compared_nats:.4f} in {found.compared_to}; KL "
        f"divergence {found.kl:.2g} nats/token; the same most likely token for {found.agreement:.1%}\n"
        f"{counted(found.tokens, 'token')} predicted, window {found.window}",
    )
    return 0


def _run_suite(args: argparse.Namespace) -> int:
    """Runs `glgpt eval --suite`; scores a run on its own text, or a model on a text file."""
    if args.csv and args.json:
        raise GlgptError("--csv and --json cannot be combined; give one of them")
    if args.window is not None:
        raise GlgptError("--window cannot be combined with --suite, which uses the whole context; set --context")
    if args.compare_to:
        raise GlgptError("--compare-to cannot be combined with --suite; evaluate a text without --suite")
    texts = _texts(args)
    with (
        open_model(args) as model,
        LanguageModel.from_pretrained(None, **device_options(args) | {"context": None}) as embedded,
    ):
        other = None if model.path == embedded.path and args.adapter is None else embedded
        with progress("scoring") as show:
            tokens = MAX_TOKENS if args.tokens is None else args.tokens
            found = score(model, texts, tokens=tokens, embedded=other, progress=show and (lambda _, *done: show(*done)))
    report(args, found.as_json(), as_csv(found).rstrip("\n") if args.csv else render(found))
    return 0


def _texts(args: argparse.Namespace) -> Texts:
    """Returns the given texts; if FILE names a run, returns the run's texts and sets `args.model` to the run."""
    run = Path(args.file) if Path(args.file).is_dir() else step_folder(args.file)
    if args.file != "-" and run:
        if args.model is not None or args.training:
            raise GlgptError(f"{args.file} is a run with its own model and text; remove --model and --training")
        args.model = args.file
        return texts_of_run(run)
    _check_file(args.file)
    text = Text.of_string(read_input("-")) if args.file == "-" else Text.of_files([args.file])
    return Texts(text, Text.of_files(args.training) if args.training else None)
