"""`glgpt dump`: draws activations as PNG files."""

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
from glgpt.cli.option_types import names
from glgpt.cli.progress import progress
from glgpt.errors import quoted
from glgpt.inspection.dump import checked_out, dump


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "dump",
        run,
        "draw attention patterns and other activations as PNG files",
        'glgpt dump "To be, or not to be" --out pictures\n'
        'glgpt dump "To be, or not to be" --model gpt2 --out pictures --layers 0,3-5 --heads 0-3\n'
        'glgpt dump "To be" --out pictures --what hidden,logits,h.2.mlp.act --raw',
        "Runs the model on a prompt and writes one PNG file for each activation, and manifest.json, which lists them.",
    )
    add_prompt_options(p, "text to run, or - to read it from stdin")
    add_model_option(p)
    p.add_argument("--out", required=True, metavar="DIR", help="folder to write to; an earlier dump there is replaced")
    p.add_argument(
        "--what",
        type=names,
        action="extend",
        metavar="WHAT,WHAT,...",
        help="attention, hidden, logits, or names of activations, in which * stands for any text, as in h.*.mlp.act; "
        "may repeat (default attention)",
    )
    p.add_argument("--layers", action="append", metavar="RANGE", help="blocks, such as 0,3-5; may repeat (default all)")
    p.add_argument("--heads", action="append", metavar="RANGE", help="heads, such as 0,3-5; may repeat (default all)")
    p.add_argument(
        "--raw", action="store_true", help="also write the textures in their memory layout, as .png and .npy"
    )
    add_json_option(p, "print the manifest as JSON")
    add_device_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt dump`."""
    text = prompt_text(args)
    checked_out(args.out)
    with open_model(args) as model, progress("drawing", "file") as show:
        ids = encode(model, text, args.ids)
        layers, heads = (",".join(given) if given else None for given in (args.layers, args.heads))
        wanted = {"layers": layers, "heads": heads, "raw": args.raw}
        manifest = dump(model, ids, args.out, args.what or ["attention"], **wanted, progress=show)
    report(args, manifest, f"{quoted(args.out)}: {len(manifest['files'])} files and manifest.json")
    return 0
