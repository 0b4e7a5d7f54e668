"""`glgpt train`: trains or fine-tunes a model."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.commands.tokenizer import TOKENIZERS
from glgpt.cli.common import DEVICE, report
from glgpt.cli.option_types import count, device, not_negative, positive, size
from glgpt.errors import GlgptError
from glgpt.training.settings import PRECISIONS, PRESETS, SCHEDULES, Settings

SIZES = "nano (0.8 M parameters), tiny (2.8 M), small (11 M), medium (28 M), large (65 M), gpt2 (124 M)"
DIVERGED = 1  # exit code


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "train",
        run,
        "train or fine-tune a model on text files",
        "glgpt train play.txt --preset nano --out runs/play\n"
        "glgpt train play.txt --preset small --precision f16 --steps 2000\n"
        "glgpt train letters.txt --init gpt2 --lr 1e-4 --steps 200  # fine-tuning\n"
        "glgpt train --resume runs/play\n"
        "glgpt generate --model runs/play  # the trained model",
        "Writes a run folder with checkpoints in the format of Hugging Face transformers, the loss of each step\n"
        "and the settings. Ctrl-C saves a checkpoint and stops; --resume continues.",
    )
    p.add_argument("files", nargs="*", metavar="FILE", help="UTF-8 text; several files are read as one text")
    p.add_argument("--out", metavar="RUN", help="folder of the run (default: a new one in runs)")
    p.add_argument("--resume", metavar="RUN", help="resume the run in this folder from its last checkpoint")
    p.add_argument("--json", action="store_true", help="print the final results as JSON")
    _add(p, "--device", device, DEVICE, "DEVICE")
    _add(p, "--max-texture-memory", size, "maximum texture memory, such as 4GiB (default: no limit)", "SIZE")

    g = p.add_argument_group("model (defaults are the preset's)")
    g.add_argument("--preset", choices=tuple(PRESETS), help=f"{SIZES}; default nano")
    g.add_argument("--init", metavar="MODEL", help="fine-tune this checkpoint instead of random weights")
    _add(g, "--tokenizer", str, TOKENIZERS, "KIND")
    _add(g, "--n-layer", positive, "number of transformer blocks")
    _add(g, "--n-embd", positive, "width of the hidden states")
    _add(g, "--n-head", positive, "number of attention heads")
    _add(g, "--context", positive, "context length, in tokens (default with --init: the model's, at most 2048)")

    g = p.add_argument_group("optimization")
    _add(g, "--steps", positive, "number of optimizer steps")
    _add(g, "--batch", positive, "batch size: number of windows of --context tokens, drawn at random")
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
    text = "f16: multiply in f16, with sums and parameters in f32 (mixed precision); takes less memory"
    g.add_argument("--precision", choices=PRECISIONS, help=f"{text} (default f32)")
    _add(g, "--seed", count, "random seed of weights and batches (default 0)")

    g = p.add_argument_group("evaluation, samples, checkpoints")
    _add(g, "--eval-every", count, "steps between validations; 0 for no validation (default 250)")
    _add(g, "--eval-tokens", count, "validation tokens, spread over the held-out text; 0 for all (default 131072)")
    _add(g, "--validation", not_negative, "held-out share of the text, at its end (default 0.1)", "SHARE")
    _add(g, "--sample-every", count, "steps between sample texts; 0 for no samples (default 250)")
    _add(g, "--sample-tokens", positive, "length of a sample, in tokens (default 200)")
    _add(g, "--save-every", count, "steps between checkpoints; 0 for only one checkpoint, at the end (default 250)")
    _add(g, "--keep", count, "keep the models of the last N checkpoints, to use as RUN@STEP; 0 keeps none (default 3)")


def _add(p: Any, name: str, kind: Any, text: str, metavar: str = "N") -> None:
    p.add_argument(name, type=kind, metavar=metavar, help=text)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt train`; returns 1 if the run diverged."""
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
    results = asdict(done) | {"folder": str(done.folder)}
    report(args, results, f"{done.folder}: {done.step} steps{losses}\n{further}")
    return 128 + done.signal if done.signal else 0
