"""`glgpt train` and `glgpt tokenizer train`."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from glgpt.cli.commands import report
from glgpt.cli.options import Parser, count, device, not_negative, positive, size
from glgpt.cli.progress import progress
from glgpt.errors import GlgptError, quoted
from glgpt.system.files import staged_folder
from glgpt.system.outputs import output_folder
from glgpt.training.settings import PRECISIONS, PRESETS, SCHEDULES, Settings

SIZES = "nano (0.8 M parameters), tiny (2.8 M), small (11 M), medium (28 M), large (65 M), gpt2 (124 M)"
DIVERGED = 1
VALIDATION = 0.1  # the last share of a text, which no tokenizer is trained on


def add_train_options(p: Parser) -> None:
    """The options of `glgpt train`."""
    p.add_argument("files", nargs="*", metavar="FILE", help="UTF-8 text, read one file after another as one text")
    p.add_argument("--out", metavar="RUN", help="folder of the run (default: a new one in runs)")
    p.add_argument("--resume", metavar="RUN", help="resume a run from its last checkpoint")
    p.add_argument("--json", action="store_true", help="print the last figures as JSON")
    _add(p, "--device", device, "auto, software, gpu, or an EGL device's number (see glgpt info)")
    _add(p, "--max-texture-memory", size, "refuse to train with more textures, such as 4GiB (default: any)", "SIZE")

    g = p.add_argument_group("model (the default of each is the preset's)")
    g.add_argument("--preset", choices=tuple(PRESETS), help=f"{SIZES}; default nano")
    g.add_argument("--init", metavar="MODEL", help="train this checkpoint further, in place of fresh weights")
    _add(g, "--tokenizer", str, "gpt2, bytes, bpe:N trained on the text, or a folder", "KIND")
    _add(g, "--n-layer", positive, "blocks")
    _add(g, "--n-embd", positive, "width")
    _add(g, "--n-head", positive, "attention heads")
    _add(g, "--context", positive, "tokens of a window; of --init the model's, 2048 at most")

    g = p.add_argument_group("steps")
    _add(g, "--steps", positive, "optimizer steps")
    _add(g, "--batch", positive, "windows of the text drawn at once")
    _add(g, "--accumulate", positive, "batches whose gradients make one step (default 1)")
    _add(g, "--lr", not_negative, "greatest learning rate", "R")
    g.add_argument("--schedule", choices=SCHEDULES, help="how the learning rate falls (default cosine)")
    _add(g, "--warmup", count, "steps over which it rises (default: a twentieth, at most 100)")
    _add(g, "--min-lr", not_negative, "what it falls to (default: a tenth of --lr)", "R")
    _add(g, "--beta2", not_negative, "AdamW's second decay", "B")
    _add(g, "--weight-decay", not_negative, "of matrices only (default 0.1)", "W")
    _add(g, "--clip", not_negative, "greatest norm of the gradient; 0 does not clip (default 1)", "C")
    _add(g, "--dropout", not_negative, "share of activations dropped (default 0)", "P")
    g.add_argument(
        "--recompute", action="store_true", default=None, help="compute activations twice instead of keeping them"
    )
    text = "f16: products in halves, sums and parameters in f32; less memory, as in --preset small --precision f16"
    g.add_argument("--precision", choices=PRECISIONS, help=f"{text} (default f32)")
    _add(g, "--seed", count, "same seed, same weights and batches (default 0)")

    g = p.add_argument_group("evaluation, samples, checkpoints (0: never)")
    _add(g, "--eval-every", count, "steps between validations (default 250)")
    _add(g, "--eval-tokens", count, "validate on so many tokens, spread over the text; 0: all (default 131072)")
    _add(g, "--validation", not_negative, "last share of the text kept for it (default 0.1)", "SHARE")
    _add(g, "--sample-every", count, "steps between samples (default 250)")
    _add(g, "--sample-tokens", positive, "length of a sample (default 200)")
    _add(g, "--save-every", count, "steps between checkpoints (default 250)")
    _add(g, "--keep", count, "keep the models of the last N checkpoints, for RUN@STEP (default 3)")


def _add(p: Any, name: str, kind: Any, text: str, metavar: str = "N") -> None:
    p.add_argument(name, type=kind, metavar=metavar, help=text)


def run_train(args: argparse.Namespace) -> int:
    """`glgpt train`: 1 when the run diverged."""
    from glgpt.cli.training_dashboard import watcher
    from glgpt.training.events import DivergedError
    from glgpt.training.run import train
    from glgpt.training.run_folder import check_new

    given = {field.name: getattr(args, field.name, None) for field in fields(Settings)}
    where = {name: getattr(args, name) for name in ("out", "preset", "init", "resume")}
    if args.resume and not Path(args.resume).is_dir():
        raise GlgptError(f"--resume {args.resume}: there is no such folder")
    if args.out is not None:
        check_new(args.out)
    try:
        with watcher() as watched:
            done = train(args.files, **where, **watched.hooks(), **given)
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
    """The subcommands of `glgpt tokenizer`."""
    sub = p.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    text = "train a byte-level BPE in GPT-2's file format"
    example = "glgpt tokenizer train play.txt --vocab 1024 --out my-tokenizer"
    t = sub.add_parser("train", help=text, description=text, epilog=f"example:\n  {example}", allow_abbrev=False)
    t.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 text")
    t.add_argument("--vocab", type=positive, required=True, metavar="N", help="how many tokens, from 257")
    t.add_argument("--out", required=True, metavar="DIR", help="folder for vocab.json and merges.txt")
    t.add_argument("--json", action="store_true", help="print the figures as JSON")
    t.set_defaults(run=run_tokenizer_train)
    text = "how tokenizers cut a text: compression, longest and rarest tokens"
    example = "glgpt tokenizer inspect play.txt --tokenizer bpe:512 --tokenizer bytes"
    t = sub.add_parser("inspect", help=text, description=text, epilog=f"example:\n  {example}", allow_abbrev=False)
    t.add_argument("files", nargs="+", metavar="FILE", help="UTF-8 text")
    kinds = "gpt2, bytes, bpe:N trained on the text, or a folder; may repeat, to compare (default bpe:512)"
    t.add_argument("--tokenizer", action="append", metavar="KIND", help=kinds)
    t.add_argument("--json", action="store_true", help="print the figures as JSON")
    t.set_defaults(run=run_tokenizer_inspect)


def run_tokenizer_train(args: argparse.Namespace) -> int:
    """`glgpt tokenizer train`."""
    from glgpt.text.files import Text
    from glgpt.text.tokenizer_training import FILES, train_bpe

    held = "a tokenizer already; give another folder", lambda path: any((path / name).exists() for name in FILES)
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
        with tempfile.TemporaryDirectory() as folder, progress("cutting", "B") as show:
            tokenizer = make_tokenizer(kind, text.split(VALIDATION)[0], Path(folder), show)
            found.append(cut_of(kind, tokenizer, text, progress=show))

    def shown(tokens: list[dict[str, object]]) -> str:
        return "  ".join(f"{token['label']} ({token['count']})" for token in tokens) or "none"

    lines = [
        f"{quoted(c.name)}: {c.vocab_size:,} tokens; {c.bytes:,} bytes become {c.tokens:,}, {c.bytes_per_token:.2f} "
        f"bytes a token\n  {'|'.join(c.beginning)}\n  longest: {shown(c.longest)}\n  rarest: {shown(c.rarest)}"
        for c in found
    ]
    report(args, [asdict(c) for c in found], "\n".join(lines))
    return 0
