"""`glgpt convert`: writes a model as a GGUF file or a Hugging Face folder."""

from __future__ import annotations

import argparse
import shlex

from glgpt.checkpoint.conversion import DTYPES, convert
from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.common import MODEL, add_adapter_option, add_json_option, report
from glgpt.cli.progress import progress
from glgpt.errors import quoted


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "convert",
        run,
        "write a model as a GGUF file or a Hugging Face folder",
        "glgpt convert runs/play --to play.gguf  # for llama.cpp and the tools built on it\n"
        "glgpt convert gpt2 --to gpt2-q8.gguf --dtype q8\n"
        "glgpt convert model.gguf --to folder --dtype f16  # for transformers\n"
        "glgpt convert gpt2 --adapter my-lora --to merged.gguf",
        "A GGUF file holds the configuration, the tokenizer, the chat template and the weights. A folder holds them\n"
        "as config.json, tokenizer files and model.safetensors. An interrupted conversion leaves no incomplete output.",
    )
    p.add_argument("model", metavar="MODEL", help=MODEL)
    add_adapter_option(p)
    p.add_argument("--to", required=True, metavar="FILE.gguf|DIR", help="file or folder to write")
    p.add_argument(
        "--dtype", choices=DTYPES,
        help="format of the matrices: f32, f16, or in a GGUF file q8 (Q8_0) or q4 (Q4_1, with the value and down "
        "projections, the embedding and the head as Q8_0); default: f16 if the model's matrices are f16, else f32",
    )  # fmt: skip
    add_json_option(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt convert`."""
    with progress("converting", "B") as show:
        found = convert(args.model, args.to, args.dtype, show, args.adapter)
    hint = f"run it with: glgpt generate --model {shlex.quote(args.to)}"
    report(args, found, f"{quoted(args.to)}: {found['dtype']}, {found['bytes'] / 1e6:.0f} MB; {hint}")
    return 0
