"""`glgpt train` and `glgpt tokenizer`."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from glgpt.cli.commands import report
from glgpt.cli.options import (
    DEVICE,
    Parser,
    add_command,
    count,
    device,
    not_negative,
    positive,
    size,
)
from glgpt.cli.progress import progress
from glgpt.errors import GlgptError, quoted
from glgpt.system.files import staged_folder
from glgpt.system.outputs import output_folder
from glgpt.training.settings import PRECISIONS, PRESETS, SCHEDULES, Settings

SIZES = "nano (0.8 M parameters), tiny (2.8 M), small (11 M), medium (28 M), large (65 M), gpt2 (124 M)"
TOKENIZERS = "gpt2, bytes, bpe:N (BPE with N tokens, trained on the text), or a folder"
DIVERGED = 1
VALIDATION = 0.1  # share of a text, at its end, on which no tokenizer is trained


def add_train_options(p: Parser) -> None:
    """Adds the options of `glgpt train`."""
    p.add_argument("files", nargs="*", metavar="FILE", help="UTF-8 text; several files are read as one text")
    p.add_argument("--out", metavar="RUN", help="folder of the run (default: a new one in runs)")
    p.add_argument("--resume", metavar="RUN", help="resume the run in this folder from its last checkpoint")
    p.add_argument("--json", action="store_true", help="print the final results as JSON")
    _add(p, "--device", device, DEVICE)
    _add(p, "--max-texture-memory", size, "maximum texture memory, such as 4GiB (default: no limit)", "SIZE")

    g = p.add_argument_group("model (defaults are the preset's)")
    g.add_argument("--preset", choices=tuple(PRESETS), help=f"{SIZES}; default nano")
    g.add_argument("--init", metavar="MODEL", help="fine-tune this checkpoint instead of random weights")
    _add(g, "--tokenizer", str, TOKENIZERS, "KIND")
    _add(g, "--n-layer", positive, "number of transformer blocks")
    _add(g, "--n-embd", positive, "width of the hidden states")
    _add(g, "--n-head", positive, "number of attention heads")
    _add(g, "--context", positive, "context length, in tokens; with --init the model's, at most 2048")

    g = p.add_argument_group("optimization")
    _add(g, "--steps", positive, "number of optimizer steps")
    _add(g, "--batch", positive, "batch size: windows of --context tokens, drawn at random")
    _add(g, "--accumulate", positive, "gradient accumulation: batches for each step (default 1)")
    _add(g, "--lr", not_negative, "maximum learning rate", "R")
    g.add_argument("--schedule", choices=SCHEDULES, help="learning-rate schedule after the warmup (default cosine)")
    _add(g, "--warmup", count, "warmup steps of the learning rate (default: a twentieth of --steps, at most 100)")
    _add(g, "--min-lr", not_negative, "learning rate at the end of the schedule (default: a tenth of --lr)", "R")
    _add(g, "--beta2", not_negative, "beta2 of AdamW", "B")
    _add(g, "--weight-decay", not_negative, "weight decay of AdamW, for matrices only (default 0.1)", "W")
    _add(g, "--clip", not_negative, "maximum gradient norm; 0 disables clipping (default 1)", "C")
    _add(g, "--dropout", not_negative, "dropout probability (default 0)", "P")
    text = "gradient checkpointing: recompute activations in the backward pass, to save memory"
    g.add_argument("--recompute", action="store_true", default=None, help=text)
    text = "mixed precision: f16 multiplies in f16, and keeps sums and parameters in f32; takes less memory"
    g.add_argument("--precision", choices=PRECISIONS, help=f"{text} (default f32)")
    _add(g, "--seed", count, "random seed of weights and batches (default 0)")

    g = p.add_argument_group("evaluation, samples, checkpoints (0 disables)")
    _add(g, "--eval-every", count, "steps between validations (default 250)")
    _add(g, "--eval-tokens", count, "validation tokens, spread over the held-out text; 0 for all (default 131072)")
    _add(g, "--validation", not_negative, "share of the text, at its end, held out for it (default 0.1)", "SHARE")
    _add(g, "--sample-every", count, "steps between sample texts (default 250)")
    _add(g, "--sample-tokens", positive, "length of a sample, in tokens (default 200)")
    _add(g, "--save-every", count, "steps between checkpoints (default 250)")
    _add(g, "--keep", count, "keep the models of the last N checkpoints, as RUN@STEP (default 3)")


def _add(p: Any, name: str, kind: Any, text: str, metavar: str = "N") -> None:
    p.add_argument(name, type=kind, metavar=metavar, help=text)


def run_train(args: argparse.Namespace) -> int:
    """`glgpt train`; returns 1 if the run diverged."""
    from glgpt.cli.training_dashboard import watcher
    from glgpt.training.events import DivergedError
    from glgpt.training.run import train
    from glgpt.training.run_folder import check_new

    given = {field.name: getattr(args, field.name, None) for field in fields(Settings)}
    where = {name: getattr(args, name) for name in ("out", "preset", "init", "resume")}
    if args.resume and not Path(args.resume).is_dir():
        raise GlgptError(f"--resume {args.resume}: no such folder")
    if args.out is not None:
        check_new(args.out)
    try:
        with watcher() as watched:
            done = train(args.files, **where, callbacks=watched.callbacks(), **given)
    except DivergedError as error:
        print(f"glgpt: error: {error}", file=sys.stderr)
        return DIVERGED
    folder = shlex.quote(str(done.folder))
    losses = "" if done.loss is None else f", loss {done.loss:.4f}"
    if done.validation_loss is not None:
        losses += f", validation {done.validation_loss:.4f} nats/token, {done.bits_per_byte:.4f} bits/byte"
        losses += "" if done.validation_step == done.step else f" at step {done.validation_step}"
    further = (
        f"stopped; resume with: glgpt train --resume {folder}"
        if done.interrupted
        else f"try it: glgpt generate --model {folder}"
    )
    figures = asdict(done) | {"folder": str(done.folder)}
    report(args, figures, f"{done.folder}: {done.step} steps{losses}\n{further}")
    return 128 + done.signal if done.signal else 0


def add_tokenizer_commands(p: Parser) -> None:
    """Adds the subcommands of `glgpt tokenizer`."""
    sub = p.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)

    def add(name: str, run: object, text: str, examples: str) -> Parser:
        command = add_command(sub, name, text, examples)
        command.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 text; several files are read as one text")
        command.set_defaults(run=run)
        return command

    examples = """glgpt tokenizer train play.txt --vocab 1024 --out my-tokenizer
glgpt train play.txt --tokenizer my-tokenizer"""
    t = add("train", run_tokenizer_train, "train a byte-level BPE tokenizer in GPT-2's file format", examples)
    t.add_argument("--vocab", type=positive, required=True, metavar="N", help="size of the vocabulary, at least 257")
    t.add_argument("--out", required=True, metavar="DIR", help="folder to write vocab.json and merges.txt to")
    t.add_argument("--json", action="store_true", help="print the results as JSON")
    examples = "glgpt tokenizer inspect play.txt --tokenizer bpe:512 --tokenizer bytes"
    text = "show how tokenizers split a text: bytes per token, longest and rarest tokens"
    t = add("inspect", run_tokenizer_inspect, text, examples)
    kinds = f"{TOKENIZERS}; may repeat, to compare (default bpe:512)"
    t.add_argument("--tokenizer", action="append", metavar="KIND", help=kinds)
    t.add_argument("--json", action="store_true", help="print the results as JSON")


def run_tokenizer_train(args: argparse.Namespace) -> int:
    """`glgpt tokenizer train`."""
    from glgpt.text.files import Text
    from glgpt.text.tokenizer_training import FILES, train_bpe

    held = "a tokenizer; give another folder", lambda path: any((path / name).exists() for name in FILES)
    out = output_folder(args.out, held=held)
    text = Text.of_files(args.files)
    with progress("training", "B") as show, staged_folder(out) as folder:
        train_bpe(text, args.vocab, folder, show)
    figures = {"out": args.out, "vocab_size": args.vocab, "text_bytes": text.size}
    hint = f"use it with: glgpt train FILE --tokenizer {shlex.quote(args.out)}"
    report(args, figures, f"{quoted(args.out)}: {args.vocab} tokens from {text.size:,} bytes; {hint}")
    return 0


def run_tokenizer_inspect(args: argparse.Namespace) -> int:
    """`glgpt tokenizer inspect`."""
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
