"""`glgpt split serve`, and the options of other commands that use split servers."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from glgpt.cli.operation.options import add_server_options, listening, operated
from glgpt.cli.options import (
    Parser,
    add_command,
    add_device_options,
    device_options,
    not_negative,
    positive,
)
from glgpt.cli.progress import progress
from glgpt.errors import ArgumentError, quoted
from glgpt.system.files import named_errors
from glgpt.wire import hidden

if TYPE_CHECKING:
    from glgpt.inference.model import LanguageModel
    from glgpt.page.split import SplitPage
    from glgpt.split.engine import EngineBase

TOKEN = "GLGPT_SPLIT_TOKEN"  # environment variable with the default of --token

WIRE = "number format of hidden states on the network (default f32, exact)"


def add_split_commands(parser: Parser) -> None:
    """Adds the subcommands of `glgpt split`."""
    sub = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    text = "serve some blocks of a model to clients over WebSocket"
    more = "A client runs the other blocks itself and exchanges hidden states with the server, one request per step."
    examples = """glgpt split serve --blocks 4-5
glgpt generate --split ws://127.0.0.1:8043 "To be"
glgpt split serve --model gpt2 --blocks 6-11 --listen 0.0.0.0:8043 --token SECRET --tls cert.pem key.pem"""
    p = add_command(sub, "serve", text, examples, more)
    p.set_defaults(run=run_split_serve)
    p.add_argument("--model", metavar="MODEL", help="folder or Hugging Face Hub name (default: the embedded model)")
    p.add_argument(
        "--blocks",
        metavar="A-B",
        help="blocks to serve, counted from 0, with the embedding if the first is among them and the head if the last "
        "is (default: all); +A-B serves the blocks alone; embed or head serves only that",
    )
    p.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        default="8043",
        help="address to listen on (default 127.0.0.1:8043); port 0 takes a free one",
    )
    p.add_argument(
        "--token",
        metavar="TEXT",
        help=f"secret that clients must send (default: ${TOKEN}); required if other machines can connect",
    )
    p.add_argument(
        "--origin",
        action="append",
        default=[],
        metavar="URL",
        help="origin of a page that may connect (default: pages of this machine); may repeat",
    )
    p.add_argument(
        "--tls", nargs=2, metavar=("CERT", "KEY"), default=(), help="PEM files; clients then connect to wss://"
    )
    text = "maximum number of texts at once, each with its own KV cache (default 8)"
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


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a command that can use split servers."""
    group = parser.add_argument_group("split over servers")
    group.add_argument(
        "--split", metavar="URL", help="use a server of glgpt split serve: it runs its blocks, this machine the others"
    )
    group.add_argument(
        "--plan", metavar="PLAN", help="use several servers, such as 0-3@here,4-7@ws://a:8043,8-11@ws://b:8043"
    )
    group.add_argument("--wire", choices=hidden.FORMATS, help=WIRE)
    group.add_argument("--token", metavar="TEXT", help=f"secret of the servers (default: ${TOKEN})")
    group.add_argument(
        "--speculate", action="store_true",
        help="speculative decoding: guess tokens from the text so far and check several in one round trip",
    )  # fmt: skip


def client_options(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the keyword arguments of `LanguageModel.from_pretrained` for a split model; none if it is not split."""
    if getattr(args, "split", None) is None and getattr(args, "plan", None) is None:
        for name in ("token", "speculate", "wire"):
            if getattr(args, name, None):
                raise ArgumentError(f"--{name} needs --split or --plan")
        return {}
    if args.split is not None and args.plan is not None:
        raise ArgumentError("--split and --plan cannot be combined; give one of them")
    where = {"rest": args.split} if args.plan is None else {"plan": args.plan}
    return {**where, "wire": args.wire or "f32", "token": _token(args), "speculate": args.speculate}


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options with which `glgpt export` leaves some blocks to a server."""
    group = parser.add_argument_group("split over a server")
    group.add_argument(
        "--server", metavar="URL",
        help="server of glgpt split serve that can run some of the blocks; the visitor chooses how many",
    )  # fmt: skip
    group.add_argument(
        "--split", type=positive, metavar="K", help="put only the embedding and the first K blocks into the page"
    )
    group.add_argument(
        "--head", choices=("server", "page"), default="server", help="where logits are computed (default server)"
    )
    group.add_argument("--wire", choices=hidden.FORMATS, help=WIRE)


def split_page(args: argparse.Namespace) -> SplitPage | None:
    """Returns the values of `add_page_options`; None for a page that holds the whole model."""
    if args.server is None:
        for name in ("split", "head", "wire"):
            if getattr(args, name) not in (None, "server"):
                raise ArgumentError(f"--{name} needs --server URL, which runs the blocks that are not in the page")
        return None
    from glgpt.page.split import SplitPage

    return SplitPage(args.split, args.server, args.wire or "f32", args.head == "page")


def split_figures(model: LanguageModel) -> list[dict[str, Any]]:
    """Returns the traffic and times of each stage of a split model; an empty list if it is not split."""
    traffic = getattr(model, "traffic", None)
    return traffic() if traffic else []


def render_split(stages: list[dict[str, Any]]) -> str:
    """Returns the traffic and times as text, one line for each stage."""
    lines = []
    for s in stages:
        steps = max(1, s["steps"])
        if "ms" in s:
            did = f"{s['rows']} tokens, {s['ms'] / steps:.1f} ms per step"
        else:
            there, wire = s["there_ms"] / steps, s["wire_ms"] / steps
            did = f"{s['rows']} tokens, {there:.1f} ms per step on the server and {wire:.1f} on the network, "
            did += f"{s['sent']:,} bytes sent, {s['received']:,} received"
            again = f", reconnected {s['reconnects']}x" if s["reconnects"] else ""
            did += again + (f", text sent again {s['replays']}x" if s["replays"] else "")
        lines.append(f"{s['part']} @ {s['place']}: {did}")
    return "\n".join(lines)


def _token(args: argparse.Namespace) -> str | None:
    return args.token or os.environ.get(TOKEN) or None


def run_split_serve(args: argparse.Namespace) -> int:
    """`glgpt split serve`."""
    from glgpt.split.server import Access, StageServer

    host, port = listening(args.listen, "--listen")
    kind, more = _engine(args)
    with progress("loading", "B") as show:
        options = {"sessions": args.sessions, "age": args.idle, **more, **device_options(args)}
        engine: EngineBase = kind(args.model, args.blocks, progress=show, **options)
    try:
        with operated(args):
            server = StageServer(engine, Access(_token(args), tuple(args.origin)), host, port, args.tls, args.idle)
            _announce(args, engine, server.url)
            server.run()
    finally:
        engine.close()
    return 0


def _engine(args: argparse.Namespace) -> tuple[Callable[..., EngineBase], dict[str, Any]]:
    """Returns the engine's class and its extra arguments. Raises ArgumentError if Ray is missing."""
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
    """Prints where the server listens, what it holds, and the bytes per token and per session."""
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
            f"{mib['shared_bytes']} once if several run together\n"
            f"a token takes {4 * width:,} bytes on the network in f32, {2 * width:,} in f16, {width + 4:,} in int8\n"
            f"{url}",
            flush=True,
        )
    if url.startswith("ws:") and urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
        warning = "without --tls, the connection is not encrypted: others on the network can read the texts"
        print(f"glgpt: warning: {warning}", file=sys.stderr, flush=True)
