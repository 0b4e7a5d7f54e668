"""Warns if a weight format changes a model's predictions noticeably."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from glgpt.checkpoint.opening import Checkpoint
from glgpt.cli.common import device_options
from glgpt.cli.progress import progress
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.inspection.format_cost import FormatCost, measure_cost, remembered_cost
from glgpt.program.formats import AS_STORED, FORMATS
from glgpt.program.tolerance import KL_LIMIT
from glgpt.tuning.kernel_selection import DeviceSettings

MAX_UNASKED_PARAMETERS = 400_000_000  # parameters; comparing a larger model takes minutes on software OpenGL


def add_check_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--check` and `--no-check`."""
    text = "compare the predictions of --dtype f16, q8 or q4 with f32, once for each model, and warn if they differ "
    text += "(default: for models up to 400 M parameters and for exports)"
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, help=text)


def check_format(args: argparse.Namespace, dtype: str, model: LanguageModel | None = None) -> FormatCost | None:
    """Warns on stderr if the KL divergence of the predictions with `dtype` from those with f32 is above `KL_LIMIT`.

    Returns the cost (the divergence); None if nothing was compared. Weights in the file's own formats (stored) are not
    rounded, so they are not compared. Split models are not compared either. The cost is cached, so that each model and
    format is measured once.

    `model` is the loaded model that the arguments name, or None for an export. Without `--check`, a loaded model above
    `MAX_UNASKED_PARAMETERS` is not measured.
    """
    split = getattr(args, "split", None) or getattr(args, "plan", None)
    if dtype in ("f32", AS_STORED) or args.check is False or split:
        return None
    try:
        with Checkpoint.open(model.path if model else args.model, getattr(args, "adapter", None)) as checkpoint:
            cost = _cost(args, checkpoint, dtype, model)
    except GlgptError as error:
        _warn(f"{dtype} was not compared with f32: {error} (--no-check skips this)")
        return None
    if cost and not cost.kl <= KL_LIMIT:
        closer = sorted((f for f in FORMATS.values() if f.spacing < FORMATS[dtype].spacing), key=lambda f: -f.spacing)
        better = ", ".join(f.name for f in closer)
        _warn(
            f"{dtype} changes the model's predictions: the KL divergence from f32 is {cost.kl:.2g} nats per token over "
            f"{cost.tokens} tokens (up to {KL_LIMIT} is hard to notice); closer to f32: --dtype {better}"
        )
    return cost


def _cost(
    args: argparse.Namespace, checkpoint: Checkpoint, dtype: str, model: LanguageModel | None
) -> FormatCost | None:
    if cost := remembered_cost(checkpoint, dtype):
        return cost
    if model and not args.check and checkpoint.config.parameter_count > MAX_UNASKED_PARAMETERS:
        size = checkpoint.config.parameter_count / 1e9
        _warn(f"{dtype} was not compared with f32, which takes minutes with {size:.1f} B parameters; give --check")
        return None
    options: dict[str, Any] = device_options(args)
    settings = DeviceSettings.taken_from(options)
    memory = {"max_texture_memory": options.get("max_texture_memory")}
    with progress(f"comparing {dtype} with f32, once (--no-check skips it)", "B") as show:
        return measure_cost(checkpoint, dtype, model, settings=settings, progress=show, **memory)


def _warn(text: str) -> None:
    print(f"glgpt: warning: {text}", file=sys.stderr, flush=True)
