"""Warns of a format that changes a model's predictions."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from glgpt.checkpoint.opening import Checkpoint
from glgpt.cli.options import Parser, device_options
from glgpt.cli.progress import progress
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.inspection.format_cost import FormatCost, measure_cost, remembered_cost
from glgpt.program.formats import FORMATS
from glgpt.program.tolerance import KL_LIMIT
from glgpt.tuning.kernel_selection import DeviceSettings

LARGE = 400_000_000  # parameters; more take minutes on software GL


def add_check_option(parser: Parser) -> None:
    """Adds `--check` and `--no-check`."""
    text = "measure what --dtype f16, q8 or q4 costs, once (default: of models up to 400 M parameters, and to export)"
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, help=text)


def check_format(args: argparse.Namespace, dtype: str, model: LanguageModel | None = None) -> FormatCost | None:
    """Warns on stderr if the KL divergence of a format from f32 exceeds 0.05; returns what was measured or remembered.

    It is measured once, and without `--check` only of models whose loading in f32 takes seconds, or without a `model`,
    to export it. `model` is the one that the arguments name, where it is loaded.
    """
    if dtype == "f32" or args.check is False or getattr(args, "split", None) or getattr(args, "plan", None):
        return None
    try:
        with Checkpoint.open(model.path if model else args.model) as checkpoint:
            cost = _cost(args, checkpoint, dtype, model)
    except GlgptError as error:
        _warn(f"{dtype} was not compared with f32: {error} (--no-check skips this)")
        return None
    if cost and not cost.kl <= KL_LIMIT:
        closer = sorted((f for f in FORMATS.values() if f.spacing < FORMATS[dtype].spacing), key=lambda f: -f.spacing)
        better = ", ".join(f.name for f in closer)
        _warn(
            f"{dtype} changes what the model predicts: the KL divergence from f32 is {cost.kl:.2g} nats a token over "
            f"{cost.tokens} tokens, where up to {KL_LIMIT} is hard to notice; closer: --dtype {better}"
        )
    return cost


def _cost(
    args: argparse.Namespace, checkpoint: Checkpoint, dtype: str, model: LanguageModel | None
) -> FormatCost | None:
    if cost := remembered_cost(checkpoint, dtype):
        return cost
    if model and not args.check and checkpoint.config.parameter_count > LARGE:
        size = checkpoint.config.parameter_count / 1e9
        _warn(f"{dtype} was not compared with f32, which takes minutes at {size:.1f} B parameters; --check does, once")
        return None
    options: dict[str, Any] = device_options(args)
    settings = DeviceSettings.taken_from(options)
    memory = {"max_texture_memory": options.get("max_texture_memory")}
    with progress(f"comparing {dtype} with f32, once (--no-check skips it)", "B") as show:
        return measure_cost(checkpoint, dtype, model, settings=settings, progress=show, **memory)


def _warn(text: str) -> None:
    print(f"glgpt: warning: {text}", file=sys.stderr, flush=True)
