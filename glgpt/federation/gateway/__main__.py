"""Runs the gateway of one site of a session: `python -m glgpt.federation.gateway`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from functools import partial
from pathlib import Path

import uvicorn

from glgpt.federation.gateway.routes import application
from glgpt.federation.gateway.service import Gateway
from glgpt.federation.operation import metrics
from glgpt.federation.operation.logs import log_to_stderr
from glgpt.federation.session import Files
from glgpt.federation.uvicorn_settings import configuration
from glgpt.page.connections import RESERVED, Limits, available_descriptors
from glgpt.page.serve import bound_socket
from glgpt.system.metrics import metrics_server


def main() -> None:
    """Runs a gateway until a signal or a failure ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--site", type=int, default=0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT")
    parser.add_argument("--tls-cert")
    parser.add_argument("--tls-key")
    parser.add_argument("--origin", action="append", default=[])
    parser.add_argument("--proxied", action="store_true", help="connections from this machine come from a proxy")
    parser.add_argument("--metrics", nargs=2, metavar=("HOST", "PORT"), default=())
    parser.add_argument("--log-level", default="info")
    parser.add_argument("--log-format", default="text")
    args = parser.parse_args()
    log_to_stderr(args.log_level, args.log_format)
    from glgpt.federation.flower.site import Site

    files = Files(args.run, args.site)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # `glgpt federate serve` handles Ctrl-C and ends this process

    proxies = frozenset(("127.0.0.1", "::1") if args.proxied else ())
    limits = Limits(total=max(RESERVED, available_descriptors() - files.session().members), exempt=proxies)
    listener = bound_socket(args.host, args.port, "--port", limits)

    async def serve() -> bool:
        gateway = Gateway(files, Site(args.superlink, files.node_key, files.node_number), tuple(args.origin))
        tls = {"ssl_certfile": args.tls_cert, "ssl_keyfile": args.tls_key}
        server = uvicorn.Server(configuration(application(gateway), listener.connections, **tls))
        gateway.on_failure = partial(setattr, server, "should_exit", True)
        metrics.observe(gateway)
        await server.serve(sockets=[listener])
        return gateway.failed

    with metrics_server(args.metrics[0], int(args.metrics[1])) if args.metrics else contextlib.nullcontext():
        failed = asyncio.run(serve())
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
