"""`glgpt split serve`, and the options with which other commands use such servers."""

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
from glgpt.cli.options import Parser, add_device_options, device_options, not_negative, positive
from glgpt.cli.progress import progress
from glgpt.errors import ArgumentError, quoted
from glgpt.system.files import named_errors
from glgpt.wire import hidden

if TYPE_CHECKING:
    from glgpt.inference.model import LanguageModel
    from glgpt.page.split import SplitPage
    from glgpt.split.engine import EngineBase

TOKEN = "GLGPT_SPLIT_TOKEN"  # the environment variable that gives --token where the option is absent


def add_split_commands(parser: Parser) -> None:
    """The subcommands of `glgpt split`."""
    sub = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    text = "hold some blocks of a model, and run them for clients over WebSocket"
    example = 'glgpt split serve --blocks 4-5\n  glgpt generate --split ws://127.0.0.1:8043 "To be"'
    p = sub.add_parser("serve", help=text, description=text, epilog=f"example:\n  {example}", allow_abbrev=False)
    p.set_defaults(run=run_split_serve)
    p.most = 1  # a model's name, as an old form
    p.add_argument("--model", metavar="MODEL", help="a folder or a Hub name (default: the embedded model)")
    p.add_argument(
        "--blocks",
        metavar="A-B",
        help="the blocks to hold, with the embedding or the head where they reach an end (default: all); "
        "+A-B leaves both out; embed or head alone",
    )
    p.add_argument(
        "--listen", metavar="[HOST:]PORT", default="8043", help="default 127.0.0.1:8043; port 0 takes a free one"
    )
    p.add_argument(
        "--token", metavar="TEXT", help=f"what clients must know (default: ${TOKEN}); others than this machine need one"
    )
    p.add_argument(
        "--origin",
        action="append",
        default=[],
        metavar="URL",
        help="pages that may connect (default: this machine's); may repeat",
    )
    p.add_argument(
        "--tls", nargs=2, metavar=("CERT", "KEY"), default=(), help="PEM files; then clients connect to wss://"
    )
    p.add_argument("--sessions", type=positive, default=8, metavar="N", help="texts at once, a cache each (default 8)")
    p.add_argument(
        "--idle",
        type=not_negative,
        default=600.0,
        metavar="S",
        help="seconds until what idles ends (default 600)",
    )
    p.add_argument("--json", action="store_true", help="print one JSON object a line")
    p.add_argument(
        "--engine",
        choices=("embedded", "ray"),
        default="embedded",
        help='ray: ranges of the blocks on Ray Serve (pip install "glgpt[cluster]"), on the cluster of $RAY_ADDRESS',
    )
    p.add_argument("--stages", type=positive, metavar="N", help="with --engine ray: ranges of blocks (default 1)")
    p.add_argument("--replicas", type=positive, metavar="N", help="with --engine ray: of each range (default 1)")
    add_device_options(p)
    add_server_options(p)


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """What a command takes that may use split servers."""
    group = parser.add_argument_group("split over servers")
    group.add_argument(
        "--split", metavar="URL", help="a server (glgpt split serve) runs its blocks, this machine the others"
    )
    group.add_argument("--plan", metavar="PLAN", help="several: 0-3@here,4-7@ws://a:8043,8-11@ws://b:8043")
    group.add_argument("--wire", choices=hidden.FORMATS, help="how hidden states travel (default f32, exact)")
    group.add_argument("--token", metavar="TEXT", help=f"what the servers ask for (default: ${TOKEN})")
    group.add_argument("--speculate", action="store_true", help="check guesses from the text several at a time")


def client_options(args: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `LanguageModel.from_pretrained` that say what is split; none where nothing is."""
    if getattr(args, "split", None) is None and getattr(args, "plan", None) is None:
        for name in ("token", "speculate", "wire"):
            if getattr(args, name, None):
                raise ArgumentError(f"--{name} goes with --split or --plan")
        return {}
    if args.split is not None and args.plan is not None:
        raise ArgumentError("--split and --plan both say what runs where; give one of them")
    where = {"rest": args.split} if args.plan is None else {"plan": args.plan}
    return {**where, "wire": args.wire or "f32", "token": _token(args), "speculate": args.speculate}


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """What `glgpt export` takes to leave some blocks to a server."""
    group = parser.add_argument_group("split over a server")
    group.add_argument("--server", metavar="URL", help="which runs blocks (glgpt split serve); the page says how many")
    group.add_argument("--split", type=positive, metavar="K", help="the page holds the embedding and K blocks alone")
    group.add_argument(
        "--head", choices=("server", "page"), default="server", help="where the logits are computed (default server)"
    )
    group.add_argument("--wire", choices=hidden.FORMATS, help="how hidden states travel (default f32, exact)")


def split_page(args: argparse.Namespace) -> SplitPage | None:
    """What `add_page_options` filled in; None for a page that holds the whole model."""
    if args.server is None:
        for name in ("split", "head", "wire"):
            if getattr(args, name) not in (None, "server"):
                raise ArgumentError(f"--{name} goes with --server URL, which runs the blocks that the page leaves")
        return None
    from glgpt.page.split import SplitPage

    return SplitPage(args.split, args.server, args.wire or "f32", args.head == "page")


def split_figures(model: LanguageModel) -> list[dict[str, Any]]:
    """What each stage of a split model did; none where the model is whole."""
    traffic = getattr(model, "traffic", None)
    return traffic() if traffic else []


def render_split(stages: list[dict[str, Any]]) -> str:
    """The same for people, a line a stage."""
    lines = []
    for s in stages:
        steps = max(1, s["steps"])
        if "ms" in s:
            did = f"{s['rows']} tokens, {s['ms'] / steps:.1f} ms a step"
        else:
            there, wire = s["there_ms"] / steps, s["wire_ms"] / steps
            did = f"{s['rows']} tokens, {there:.1f} ms a step there and {wire:.1f} on the wire, "
            did += f"{s['sent']:,} bytes sent, {s['received']:,} received"
            again = f", connected again {s['reconnects']}x" if s["reconnects"] else ""
            did += again + (f", text fed again {s['replays']}x" if s["replays"] else "")
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
    """What runs the blocks, and what it takes beside the rest. Raises ArgumentError where Ray is missing."""
    if args.engine == "embedded":
        for name in ("stages", "replicas"):
            if getattr(args, name) is not None:
                raise ArgumentError(f"--{name} goes with --engine ray")
        from glgpt.split.engine import Engine

        return Engine, {}
    try:
        from glgpt.split.cluster import RayEngine
    except ImportError as error:
        raise ArgumentError(f'--engine ray needs Ray: pip install "glgpt[cluster]" ({quoted(error)})') from None
    return RayEngine, {"stages": args.stages or 1, "replicas": args.replicas or 1}


def _announce(args: argparse.Namespace, engine: EngineBase, url: str) -> None:
    """Says where the server listens, what it holds, and what a token and a session take."""
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
            f"{mib['session_bytes']} more a session, {engine.most} at most; "
            f"{mib['shared_bytes']} once several run together\n"
            f"a token takes {4 * width:,} bytes on the wire in f32, {2 * width:,} in f16, {width + 4:,} in int8\n"
            f"{url}",
            flush=True,
        )
    if url.startswith("ws:") and urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1"):
        print("glgpt: warning: without --tls, others on the way can read the texts", file=sys.stderr, flush=True)
