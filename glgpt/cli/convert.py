"""`glgpt convert`."""

from __future__ import annotations

import argparse

from glgpt.checkpoint.conversion import DTYPES, convert
from glgpt.cli.commands import report
from glgpt.cli.progress import progress
from glgpt.errors import quoted

__all__ = ["DTYPES", "run_convert"]


def run_convert(args: argparse.Namespace) -> int:
    """`glgpt convert`."""
    with progress("converting", "B") as show:
        found = convert(args.model, args.to, args.dtype, show)
    hint = f"run it with: glgpt generate --model {quoted(args.to)}"
    report(args, found, f"{quoted(args.to)}: {found['dtype']}, {found['bytes'] / 1e6:.0f} MB; {hint}")
    return 0
