"""`glgpt serve`: serves an exported page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.option_types import count

SHARED = """Anyone on this network can open this address, without a password and through unencrypted http.
Each browser runs the model itself; what is typed into it stays in that browser. Ctrl-C stops the server."""


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "serve",
        run,
        "serve an exported page on this machine or network",
        "glgpt serve page\nglgpt serve page --host 0.0.0.0  # for a classroom: others on this network can open it",
    )
    p.add_argument("folder", metavar="DIR", help="folder that glgpt export wrote")
    p.add_argument("--port", type=count, default=8042, metavar="PORT", help="0 selects a free port (default 8042)")
    host = (
        "address to listen on (default 127.0.0.1: only this machine); 0.0.0.0 lets anyone on the network open the page"
    )
    p.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help=host)
    names = "also answer requests for this host name, such as a proxy's; may repeat"
    p.add_argument("--allow-host", action="append", metavar="NAME", help=names)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt serve`."""
    from glgpt.cli.qr import print_qr
    from glgpt.page.serve import serve
    from glgpt.system.network import is_loopback

    def announce(address: str) -> None:
        print(address, flush=True)
        if not is_loopback(args.host):
            print_qr(address)
            print(SHARED, file=sys.stderr, flush=True)

    serve(Path(args.folder), args.port, args.host, args.allow_host or (), announce)
    return 0
