"""`glgpt tokenizer`: trains and inspects tokenizers."""

from __future__ import annotations

import argparse
import shlex
import tempfile
from dataclasses import asdict
from pathlib import Path

from glgpt.cli.argument_parser import Parser, Run, Subparsers, add_command, add_group
from glgpt.cli.common import report
from glgpt.cli.option_types import positive
from glgpt.cli.progress import progress
from glgpt.errors import quoted
from glgpt.system.files import staged_folder
from glgpt.system.outputs import output_folder

TOKENIZERS = "gpt2, bytes, bpe:N (BPE with N tokens, trained on the text), or a folder"
# Share of a text, at its end, that `inspect` does not use when it trains a tokenizer; `train` uses the whole text
VALIDATION = 0.1


def add_parser(sub: Subparsers) -> None:
    """Adds the command and its subcommands."""
    group = add_group(
        sub,
        "tokenizer",
        "train or inspect a tokenizer",
        "glgpt tokenizer train play.txt --vocab 1024 --out my-tokenizer\n"
        "glgpt tokenizer inspect play.txt --tokenizer bpe:512 --tokenizer gpt2",
    )

    def add(name: str, run: Run, text: str, examples: str) -> Parser:
        command = add_command(group, name, run, text, examples)
        command.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 text; several files are read as one text")
        return command

    examples = """glgpt tokenizer train play.txt --vocab 1024 --out my-tokenizer
glgpt train play.txt --tokenizer my-tokenizer"""
    t = add("train", run_train, "train a byte-level BPE tokenizer in GPT-2's file format", examples)
    t.add_argument("--vocab", type=positive, required=True, metavar="N", help="size of the vocabulary, at least 257")
    t.add_argument("--out", required=True, metavar="DIR", help="folder to write vocab.json and merges.txt to")
    t.add_argument("--json", action="store_true", help="print the results as JSON")
    examples = "glgpt tokenizer inspect play.txt --tokenizer bpe:512 --tokenizer bytes"
    text = "show how tokenizers split a text: bytes per token, longest and rarest tokens"
    t = add("inspect", run_inspect, text, examples)
    kinds = f"{TOKENIZERS}; may repeat, to compare (default bpe:512)"
    t.add_argument("--tokenizer", action="append", metavar="KIND", help=kinds)
    t.add_argument("--json", action="store_true", help="print the results as JSON")


def run_train(args: argparse.Namespace) -> int:
    """Runs `glgpt tokenizer train`."""
    from glgpt.text.files import Text
    from glgpt.text.tokenizer_training import FILES, train_bpe

    held = "a tokenizer; give another folder", lambda path: any((path / name).exists() for name in FILES)
    out = output_folder(args.out, held=held)
    text = Text.of_files(args.files)
    with progress("training", "B") as show, staged_folder(out) as folder:
        train_bpe(text, args.vocab, folder, show)
    results = {"out": args.out, "vocab_size": args.vocab, "text_bytes": text.size}
    hint = f"use it with: glgpt train FILE --tokenizer {shlex.quote(args.out)}"
    report(args, results, f"{quoted(args.out)}: {args.vocab} tokens from {text.size:,} bytes; {hint}")
    return 0


def run_inspect(args: argparse.Namespace) -> int:
    """Runs `glgpt tokenizer inspect`."""
    from glgpt.text.files import Text
    from glgpt.text.tokenizer_inspection import Cut, cut_of
    from glgpt.text.tokenizer_training import make_tokenizer

    text = Text.of_files(args.files)
    found: list[Cut] = []
    for kind in args.tokenizer or ["bpe:512"]:
        with tempfile.TemporaryDirectory() as folder, progress("tokenizing", "B") as show:
            tokenizer = make_tokenizer(kind, text.split(VALIDATION)[0], Path(folder), show)
            found.append(cut_of(kind, tokenizer, text, progress=show))

    def listed(tokens: list[dict[str, object]]) -> str:
        return "  ".join(f"{token['label']} ({token['count']})" for token in tokens) or "none"

    lines = [
        f"{quoted(c.name)}: {c.vocab_size:,} tokens in the vocabulary; {c.bytes:,} bytes become {c.tokens:,} tokens, "
        f"{c.bytes_per_token:.2f} bytes per token\n"
        f"  {'|'.join(c.beginning)}\n  longest: {listed(c.longest)}\n  rarest: {listed(c.rarest)}"
        for c in found
    ]
    report(args, [asdict(c) for c in found], "\n".join(lines))
    return 0
