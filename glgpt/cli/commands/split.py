"""`glgpt split serve`: serves blocks of a model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from glgpt.cli.argument_parser import Subparsers, add_command, add_group
from glgpt.cli.common import MODEL, add_device_options, device_options
from glgpt.cli.operation.options import add_server_options, listening, operated
from glgpt.cli.option_types import not_negative, origin, positive
from glgpt.cli.progress import progress
from glgpt.cli.split_options import TOKEN, get_token
from glgpt.errors import ArgumentError, quoted
from glgpt.system.files import named_errors
from glgpt.wire import hidden

if TYPE_CHECKING:
    from glgpt.split.engine import EngineBase


def add_parser(sub: Subparsers) -> None:
    """Adds the command and its subcommand."""
    group = add_group(
        sub,
        "split",
        "run the blocks of a model on several machines",
        'glgpt split serve --blocks 4-5 --listen 8043\nglgpt generate --split ws://127.0.0.1:8043 "To be"',
    )
    text = "serve some blocks of a model to clients over WebSocket"
    more = "A client runs the other blocks itself and exchanges hidden states with the server, once per forward pass."
    examples = """glgpt split serve --blocks 4-5
glgpt generate --split ws://127.0.0.1:8043 "To be"
glgpt split serve --model gpt2 --blocks 6-11 --listen 0.0.0.0:8043 --token SECRET --tls cert.pem key.pem"""
    p = add_command(group, "serve", run, text, examples, more)
    p.add_argument("--model", metavar="MODEL", help=MODEL + " (default)")
    p.add_argument(
        "--blocks",
        metavar="A-B",
        help="blocks to serve, counted from 0 (default: all); the first block includes the embedding, the last "
        "includes the head; +A-B serves the blocks without embedding and head; embed serves only the embedding, head "
        "only the head",
    )
    p.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        default="8043",
        help="address to listen on (default 127.0.0.1:8043); port 0 selects a free port",
    )
    p.add_argument(
        "--token",
        metavar="TEXT",
        help=f"secret that clients must send (default: ${TOKEN}); required if other machines can connect",
    )
    p.add_argument(
        "--origin",
        type=origin,
        action="append",
        default=[],
        metavar="URL",
        help="origin of a page that may connect (default: pages of this machine); may repeat",
    )
    p.add_argument(
        "--tls", nargs=2, metavar=("CERT", "KEY"), default=(), help="PEM files; clients then connect to wss://"
    )
    text = "maximum number of texts served at once, each with its own KV cache (default 8)"
    p.add_argument("--sessions", type=positive, default=8, metavar="N", help=text)
    p.add_argument(
        "--idle",
        type=not_negative,
        default=600.0,
        metavar="S",
        help="seconds after which idle sessions and connections are closed (default 600)",
    )
    p.add_argument("--json", action="store_true", help="print one JSON object per line")
    p.add_argument(
        "--engine",
        choices=("embedded", "ray"),
        default="embedded",
        help="ray: run ranges of the blocks on Ray Serve, on the cluster at $RAY_ADDRESS "
        '(pip install "glgpt[cluster]"); default embedded: in this process',
    )
    p.add_argument(
        "--stages", type=positive, metavar="N", help="with --engine ray: number of ranges of blocks (default 1)"
    )
    p.add_argument("--replicas", type=positive, metavar="N", help="with --engine ray: copies of each range (default 1)")
    add_device_options(p)
    add_server_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt split serve`."""
    from glgpt.split.server import Access, StageServer

    host, port = listening(args.listen, "--listen")
    access = Access(get_token(args), tuple(args.origin))
    kind, more = _engine(args)
    with progress("loading", "B") as show:
        options = {"sessions": args.sessions, "age": args.idle, **more, **device_options(args)}
        engine: EngineBase = kind(args.model, args.blocks, progress=show, **options)
    try:
        with operated(args):
            server = StageServer(engine, access, host, port, args.tls, args.idle)
            _announce(args, engine, server.url)
            server.run()
    finally:
        engine.close()
    return 0


def _engine(args: argparse.Namespace) -> tuple[Callable[..., EngineBase], dict[str, Any]]:
    """Returns the engine's class and the arguments that only this class takes.

    Raises ArgumentError if `--engine ray` is given but Ray is not installed, and if `--stages` or `--replicas` is given
    without `--engine ray`.
    """
    if args.engine == "embedded":
        for name in ("stages", "replicas"):
            if getattr(args, name) is not None:
                raise ArgumentError(f"--{name} needs --engine ray")
        from glgpt.split.engine import Engine

        return Engine, {}
    try:
        from glgpt.split.cluster import RayEngine
    except ImportError as error:
        raise ArgumentError(f'--engine ray needs Ray: pip install "glgpt[cluster]" ({quoted(error)})') from None
    return RayEngine, {"stages": args.stages or 1, "replicas": args.replicas or 1}


def _announce(args: argparse.Namespace, engine: EngineBase, url: str) -> None:
    """Prints the server's address, the part of the model that it serves, and the bytes per token and per session."""
    width, takes = engine.config.n_embd, engine.takes()
    about = {"model": engine.name, "holds": str(engine.part), "dtype": engine.dtype}
    ready = {
        "event": "ready",
        "url": url,
        **about,
        "bytes_per_token": {kind: hidden.nbytes(1, width, kind) for kind in hidden.FORMATS},
        **takes,
        "sessions": engine.most,
    }
    with named_errors(Path("stdout")):
        if args.json:
            print(json.dumps(ready), flush=True)
            return
        mib = {name: f"{count / 2**20:.1f} MiB" for name, count in takes.items()}
        print(
            f"{quoted(engine.name)}: {engine.part} in {engine.dtype}, {mib['texture_bytes']} of textures; "
            f"{mib['session_bytes']} more per session, at most {engine.most} sessions; "
            f"{mib['shared_bytes']} more in total if several sessions run together\n"
            f"a token takes {4 * width:,} bytes on the network in f32, {2 * width:,} in f16, {width + 4:,} in int8\n"
            f"{url}",
            flush=True,
        )
    if url.startswith("ws:") and urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
        warning = "without --tls, the connection is not encrypted: others on the network can read the texts"
        print(f"glgpt: warning: {warning}", file=sys.stderr, flush=True)
