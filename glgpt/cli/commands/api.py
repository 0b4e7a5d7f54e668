"""`glgpt api`: serves a model with OpenAI's API."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.common import (
    add_adapter_option,
    add_chat_model_options,
    add_device_options,
    chat_model,
    device_options,
)
from glgpt.cli.operation.options import add_server_options, operated
from glgpt.cli.option_types import count, origin, positive
from glgpt.cli.progress import progress
from glgpt.errors import ArgumentError, quoted
from glgpt.ops import MAX_ROWS
from glgpt.system.files import named_errors

CONTEXT = "maximum number of tokens of a prompt and its answer (default: the model's, at most 2048)"


def add_parser(sub: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        sub,
        "api",
        run,
        "serve a model to programs that use OpenAI's API",
        "glgpt api  # SmolLM2; make models installs it\n"
        "glgpt api model.gguf --port 8000 --dtype f16\n"
        "glgpt api --host 0.0.0.0 --api-key-file key.txt --origin https://chat.example.org",
        "Clients use http://127.0.0.1:8080/v1 as their base URL: /v1/chat/completions, /v1/completions, /v1/models.\n"
        "/health and /metrics are for operators. Ctrl-C lets running answers end; a second Ctrl-C stops them.",
    )
    add_chat_model_options(p)
    add_adapter_option(p)
    p.add_argument("--port", type=count, default=8080, metavar="PORT", help="0 selects a free port (default 8080)")
    p.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS",
        help="address to listen on (default 127.0.0.1: only this machine); other addresses need an API key",
    )  # fmt: skip
    p.add_argument(
        "--api-key", metavar="TEXT",
        help="key that clients must send (default: $GLGPT_API_KEY); other users of this machine can see the option",
    )  # fmt: skip
    p.add_argument("--api-key-file", metavar="FILE", help="read the key from this file")
    p.add_argument(
        "--origin", type=origin, action="append", default=[], metavar="URL",
        help="origin of a web page that may use the server (default: none); may repeat",
    )  # fmt: skip
    text = "also answer requests for this host name, such as a proxy's; may repeat"
    p.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=text)
    p.add_argument(
        "--parallel", type=positive, default=MAX_ROWS, metavar="N",
        help=f"maximum number of texts generated side by side, up to {MAX_ROWS} (default {MAX_ROWS})",
    )  # fmt: skip
    text = "maximum number of texts that wait while others are generated; further requests get status 429 (default 64)"
    p.add_argument("--queue", type=count, default=64, metavar="N", help=text)
    p.add_argument(
        "--cache-tokens", type=positive, metavar="N",
        help="tokens in the caches of all active texts together (default: 1024 per text, or the context if shorter)",
    )  # fmt: skip
    p.add_argument(
        "--speculate", action="store_true",
        help="speculative decoding, while a single text is generated: guess tokens from the text so far and check "
        "several in one step; the text is the same",
    )  # fmt: skip
    add_device_options(p, context=CONTEXT)
    add_server_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt api`."""
    from glgpt.api.access import api_key
    from glgpt.api.engine import Engine
    from glgpt.api.server import ApiServer

    name = chat_model(args)
    if args.parallel > MAX_ROWS:
        raise ArgumentError(f"--parallel {args.parallel} is too many; up to {MAX_ROWS} texts run side by side")
    key = api_key(args.api_key, args.api_key_file)
    with operated(args):
        server = ApiServer(args.port, args.host, key, args.origin, args.allow_host)
        try:
            with progress("loading", "B") as show:
                options = {"progress": show, "speculate": args.speculate, "adapter": args.adapter}
                options |= device_options(args)
                engine = Engine(name, args.parallel, args.queue, args.cache_tokens, **options)
            try:
                server.run(engine, lambda: _announce(server.url, engine.model.name, engine.context, args.host))
            finally:
                engine.close()
        finally:
            server.close()
    return 0


def _announce(url: str, name: str, context: int, host: str) -> None:
    from glgpt.system.network import is_loopback

    with named_errors(Path("stdout")):
        print(f"{quoted(name)}, context of {context} tokens: {url}", flush=True)
    if not is_loopback(host):
        warning = "http is not encrypted: others on the network can read the key and the texts; use a TLS proxy"
        print(f"glgpt: warning: {warning}", file=sys.stderr, flush=True)
