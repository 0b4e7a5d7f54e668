"""`glgpt selftest`: draws every op (shader) on this device and compares its outputs with reference values."""

from __future__ import annotations

import argparse

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.common import DEVICE, add_json_option, report
from glgpt.cli.option_types import device
from glgpt.cli.progress import progress
from glgpt.selftest import report as selftest


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "selftest",
        run,
        "draw every op on this device and compare it with reference values",
        "glgpt selftest\nglgpt selftest --device software\nglgpt selftest --op matmul --op norm\n"
        "glgpt selftest --json > report.json  # for an issue; nothing is sent",
    )
    p.add_argument("--op", action="append", default=[], metavar="OP", help="test only this op; may repeat")
    p.add_argument("--device", type=device, default="auto", help=DEVICE)
    add_json_option(p, "print the report as JSON, at most 20 KB")


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt selftest`."""
    with progress("drawing every op", "case") as show:
        found = selftest.run(args.device, args.op, show)
    report(args, found, selftest.render(found))
    return 1 if found["failed"] else 0
