"""`glgpt logits`: saves the logits of a prompt."""

from __future__ import annotations

import argparse

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.common import (
    add_device_options,
    add_json_option,
    add_model_option,
    add_prompt_options,
    encode,
    open_model,
    prompt_text,
    report,
)
from glgpt.cli.progress import progress
from glgpt.errors import quoted
from glgpt.inspection.logits import checked_file, save_logits


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "logits",
        run,
        "save the logits of a prompt to a file",
        'glgpt logits "To be" --model gpt2 --out logits.npz\n'
        "glgpt logits --ids 464,3290,318 --model gpt2 --out logits.npz",
        "Runs the model on a prompt and writes a NumPy .npz file with two arrays:\n"
        "`tokens` [tokens], the token ids, and `logits` [tokens, vocabulary], the scores of each next token.",
    )
    add_prompt_options(p, "text to run, or - to read it from stdin")
    add_model_option(p)
    p.add_argument("--out", required=True, metavar="FILE.npz", help="file to write")
    add_json_option(p)
    add_device_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt logits`."""
    text, out = prompt_text(args), checked_file(args.out)
    with open_model(args) as model:
        ids = encode(model, text, args.ids)
        with progress(f"processing {len(ids)} tokens"):
            shape = save_logits(model, ids, out)
    report(args, {"file": args.out, "shape": shape}, f"{quoted(args.out)}: tokens [{shape[0]}], logits {list(shape)}")
    return 0
