"""`glgpt info`: shows the device and the kernels chosen for it."""

from __future__ import annotations

import argparse

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.common import add_device_options, add_json_option, device_options, report
from glgpt.cli.progress import progress
from glgpt.inspection import info


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "info",
        run,
        "show the GPU, its limits, and the kernels chosen for it",
        "glgpt info\nglgpt info --model gpt2 --dtype q8  # also the memory that the model needs",
    )
    p.add_argument("--model", metavar="MODEL", help="also print the texture memory that this model needs")
    add_json_option(p)
    add_device_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt info`."""
    with progress("measuring this device"):
        results = info.describe(args.model, **device_options(args))
    report(args, results, info.render(results))
    return 0
