"""`glgpt compare`: checks a model against a reference."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import asdict

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.common import add_device_options, add_json_option, add_model_option, encode, open_model, report
from glgpt.cli.option_types import ids, not_negative
from glgpt.cli.progress import progress
from glgpt.errors import GlgptError, quoted
from glgpt.inspection.compare import compare, render
from glgpt.inspection.reference import load_reference, run_transformers
from glgpt.program.tolerance import KL_LIMIT, Tolerance

# The prompt if neither --prompt nor --ids is given
SENTENCE = "First Citizen:\nBefore we proceed any further, hear me speak."


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "compare",
        run,
        "check a model against reference logits; the exit status is 1 if an error exceeds the tolerance",
        "glgpt compare --model gpt2 --reference transformers --prompt 'To be' --activations\n"
        "glgpt compare --model gpt2 --reference reference.npz --dtype q8",
        "Compares the model's logits with those of Hugging Face transformers or of a stored reference, and prints\n"
        "the errors and the KL divergence. --activations also compares all intermediate values.",
    )
    add_model_option(p)
    p.add_argument(
        "--reference", required=True, metavar="FILE.npz|transformers",
        help="a stored reference, or transformers to run it now in float64",
    )  # fmt: skip
    p.add_argument(
        "--prompt", action="append", metavar="TEXT", help="with --reference transformers: text to run; may repeat"
    )
    p.add_argument(
        "--ids", action="append", type=ids, metavar="ID,ID,...", help="token ids to run instead of a prompt; may repeat"
    )
    p.add_argument(
        "--activations", action="store_true", help="compare all activations and name the first outside the tolerance"
    )
    text = "maximum mean KL divergence of the logits from the reference, in nats (default 0.05)"
    p.add_argument("--kl", type=not_negative, metavar="K", help=text)
    text = "absolute tolerance A: |error| <= A + R |reference| (default: depends on --dtype and the number of blocks)"
    p.add_argument("--atol", type=not_negative, metavar="A", help=text)
    p.add_argument("--rtol", type=not_negative, metavar="R", help="relative tolerance R in the formula of --atol")
    add_json_option(p)
    add_device_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt compare`; returns 1 if the model's error exceeds the tolerance."""
    live = args.reference == "transformers"
    if (args.prompt or args.ids) and not live:
        raise GlgptError("--prompt and --ids need --reference transformers; a stored reference has its own tokens")
    cases = [] if live else load_reference(args.reference)
    if args.activations and not live and all(set(case.arrays) == {"logits"} for case in cases):
        raise GlgptError(f"{args.reference} holds logits only; --activations needs a reference with activations")
    absolute = None if args.atol is args.rtol is None else (args.atol or 0.0, args.rtol or 0.0)
    kl = KL_LIMIT if args.kl is None else args.kl
    with open_model(args) as model:
        tolerance = Tolerance.of(model.dtype, model.config.n_layer, kl=kl, absolute=absolute)
        if live:
            texts = args.prompt or ([] if args.ids else [SENTENCE])
            prompts = [*(encode(model, text, None) for text in texts), *(args.ids or [])]
            for prompt in prompts:
                model.check_ids(prompt)
            with progress("running transformers"):
                cases = run_transformers(args.model, prompts)
        compared = []
        for i, case in enumerate(cases, 1):
            with progress(f"comparing {i} of {len(cases)}"), _named(None if live else args.reference):
                compared.append(compare(model, case, tolerance, args.activations))
    within = all(result.within for result in compared)
    results = {"within": within, **asdict(tolerance), "cases": [result.as_json() for result in compared]}
    report(args, results, render(compared, tolerance))
    return 0 if within else 1


@contextlib.contextmanager
def _named(reference: str | None) -> Iterator[None]:
    """Adds the name of the reference file to the message of an error; None: transformers computed the reference."""
    try:
        yield
    except GlgptError as error:
        if reference is None:
            raise
        remedy = "if the reference is from another model, give that model with --model"
        raise GlgptError(f"reference {quoted(reference, 200)}: {error}; {remedy}") from None
