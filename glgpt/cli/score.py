"""`glgpt eval --suite`."""

from __future__ import annotations

import argparse
from pathlib import Path

from glgpt.checkpoint.steps import step_folder
from glgpt.cli.commands import open_model, report
from glgpt.cli.options import device_options
from glgpt.cli.progress import progress
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.scoring.suite import Texts, as_csv, render, score, texts_of_run
from glgpt.text.files import Text


def run_suite(args: argparse.Namespace) -> int:
    """`glgpt eval --suite`; scores a run on its own text, or a model on a text file."""
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
        other = None if model.path == embedded.path else embedded
        with progress("scoring") as show:
            found = score(
                model, texts, tokens=args.tokens, embedded=other, progress=show and (lambda _, *done: show(*done))
            )
    report(args, found.as_json(), as_csv(found).rstrip("\n") if args.csv else render(found))
    return 0


def _texts(args: argparse.Namespace) -> Texts:
    """Returns the texts of the run that FILE names, which becomes `args.model`; else the texts that were given."""
    run = Path(args.file) if Path(args.file).is_dir() else step_folder(args.file)
    if args.file != "-" and run:
        if args.model is not None or args.training:
            raise GlgptError(f"{args.file} is a run with its own model and text; remove --model and --training")
        args.model = args.file
        return texts_of_run(run)
    return Texts(Text.of_files([args.file]), Text.of_files(args.training) if args.training else None)
