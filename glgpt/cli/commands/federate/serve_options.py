"""Defines the options of `glgpt federate serve`, and checks their combinations."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from glgpt.cli.argument_parser import Parser
from glgpt.cli.common import DEVICE, add_json_option
from glgpt.cli.operation.options import add_server_options
from glgpt.cli.option_types import above_zero, count, device, not_negative, positive
from glgpt.errors import ArgumentError, quoted
from glgpt.federation.aggregation.strategies import DEFAULT, STRATEGIES, get_strategy, names
from glgpt.federation.protocol import DTYPES, OUTER_LR, OUTER_MOMENTUM
from glgpt.system.network import is_web_address
from glgpt.training.settings import PRESETS

EVAL_TOKENS = 1 << 14  # validation tokens: fewer than in `glgpt train`, because every round ends with a validation


def add_serve_options(p: Parser) -> None:
    """Adds the options of `glgpt federate serve`."""
    p.add_argument("files", nargs="*", metavar="TEXT", help="UTF-8 text to train on; omit it to continue a session")
    p.add_argument("--out", metavar="RUN", required=True, help="folder of the run")
    add_json_option(p, "print one JSON object per line: ready, then each round, then done")
    p.add_argument("--device", type=device, help="device that evaluates the shared model: " + DEVICE)
    _add_model_options(p)
    _add_round_options(p)
    _add_network_options(p)
    add_server_options(p, "info", file=False)  # no --log-file: each process of the session logs to its own file


def _add_model_options(p: Parser) -> None:
    g = p.add_argument_group("model (defaults are the preset's)")
    g.add_argument("--preset", choices=tuple(PRESETS), help="size to train; default nano")
    g.add_argument("--init", metavar="MODEL", help="fine-tune this checkpoint instead of random weights")
    for name, kind, text in (
        ("--tokenizer", str, "gpt2, bytes, bpe:N (BPE with N tokens, trained on the text), or a folder"),
        ("--context", positive, "context length, in tokens (default with --init: the model's, at most 2048)"),
        ("--batch", positive, "batch size of a device: number of windows of --context tokens"),
        ("--lr", not_negative, "maximum learning rate of the devices"),
        ("--seed", count, "random seed of weights and batches (default 0)"),
        ("--warmup", count, "warmup steps of the learning rate"),
        ("--eval-tokens", count, f"validation tokens per round (default {EVAL_TOKENS})"),
    ):
        g.add_argument(name, type=kind, metavar="KIND" if kind is str else "N", help=text)


def _add_round_options(p: Parser) -> None:
    g = p.add_argument_group("rounds")
    g.add_argument("--rounds", type=positive, default=100, metavar="R", help="number of rounds (default 100)")
    g.add_argument(
        "--local-steps", type=positive, default=25, metavar="H", help="steps of each device per round (default 25)"
    )
    g.add_argument(
        "--quorum", type=positive, default=1, metavar="Q", help="minimum number of updates in a round (default 1)"
    )
    g.add_argument(
        "--round-seconds", type=positive, default=120, metavar="S",
        help="seconds after which a round closes if it has the quorum (default 120)",
    )  # fmt: skip
    g.add_argument(
        "--grace", type=not_negative, default=10.0, metavar="G",
        help="seconds to wait for more updates once the quorum is met (default 10)",
    )  # fmt: skip
    g.add_argument(
        "--strategy", choices=tuple(STRATEGIES), default=DEFAULT, help=f"how updates are combined (default {DEFAULT})"
    )
    for option, default, metavar, what in (
        ("--outer-lr", OUTER_LR, "R", "learning rate"),
        ("--outer-momentum", OUTER_MOMENTUM, "M", "momentum"),
    ):
        text = f"{what} of diloco's outer optimizer (default {default:g})"
        g.add_argument(option, type=not_negative, default=default, metavar=metavar, help=text)
    g.add_argument(
        "--rollback", type=positive, metavar="N",
        help="undo the last N rounds (1 or 2) of the session in --out before continuing it",
    )  # fmt: skip
    text = "for sessions with strangers: clip updates; with diloco and fedavg, also leave out outliers"
    g.add_argument("--public", action="store_true", help=text)
    g.add_argument(
        "--dp-noise", type=not_negative, default=0.0, metavar="Z",
        help="differential privacy: standard deviation of the noise on a round's mean, as a multiple of the largest "
        "change that one device can make to the mean; each round prints epsilon; "
        f"needs --strategy {' or '.join(names('supports_dp'))} (default 0: no noise)",
    )  # fmt: skip
    g.add_argument(
        "--dp-clip", type=above_zero, default=1.0, metavar="C",
        help="with --dp-noise, maximum norm of a device's update; --json prints the norms (default 1)",
    )  # fmt: skip
    g.add_argument("--dtype", choices=DTYPES, default="f16", help="number format of sent updates (default f16)")
    g.add_argument(
        "--shards", type=positive, default=256, metavar="N",
        help="number of shares of TEXT, one for each member without its own text (default 256)",
    )  # fmt: skip


def _add_network_options(p: Parser) -> None:
    g = p.add_argument_group("network")
    g.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
    g.add_argument("--port", type=count, default=8043, metavar="PORT", help="0 selects a free port (default 8043)")
    g.add_argument(
        "--url", metavar="URL", action="append", default=[],
        help="public address of this host, for the links, such as https://example.org/ behind a proxy; "
        "with --gateways, give one --url for each gateway",
    )  # fmt: skip
    g.add_argument(
        "--gateways", type=positive, default=1, metavar="N",
        help="number of processes to which devices connect, each with its own port, its own links and an equal share "
        "of the quorum (default 1, enough for a few hundred devices)",
    )  # fmt: skip
    g.add_argument(
        "--fleet-port", type=count, default=0, metavar="PORT",
        help="port on 127.0.0.1 to which the gateways connect, and to which you can connect Flower's supernodes; "
        "a proxy should forward only the path /v1/fleet/ (default: a free port)",
    )  # fmt: skip
    g.add_argument("--tls-cert", metavar="FILE", help="TLS certificate chain, PEM")
    g.add_argument("--tls-key", metavar="FILE", help="private key of the certificate, PEM")
    g.add_argument("--no-page", action="store_true", help="do not serve a page for browsers: desktops only")


def check_options(args: argparse.Namespace) -> None:
    """Raises ArgumentError for invalid options and combinations of options."""
    if (args.tls_cert is None) != (args.tls_key is None):
        raise ArgumentError("--tls-cert and --tls-key must be given together")
    for url in args.url:
        if not is_web_address(url) or urlsplit(url).query or urlsplit(url).fragment:
            raise ArgumentError(f"--url {quoted(url)} is not a web address, such as https://example.org/")
    if args.tls_cert:
        _check_certificate(args.tls_cert, args.tls_key)
    strategy = get_strategy(args.strategy)
    if args.dp_noise and not strategy.supports_dp:
        private = " or ".join(names("supports_dp"))
        raise ArgumentError(
            f"--dp-noise needs --strategy {private}: {args.strategy} does not limit the effect of one device"
        )
    if args.gateways > args.shards:
        raise ArgumentError(f"{args.gateways} gateways need at least {args.gateways} --shards, not {args.shards}")
    if args.gateways > 1 and (args.public or strategy.needs_all_updates):
        comparing = " and ".join(names("needs_all_updates"))
        raise ArgumentError(f"--public, {comparing} need --gateways 1: they compare each update with all others")
    if args.dp_noise and args.gateways > 1:
        raise ArgumentError("--dp-noise needs --gateways 1: with more, devices have unequal weights in the mean")


def _check_certificate(cert: str, key: str) -> None:
    """Raises ArgumentError for a certificate or key that cannot be used."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as error:  # includes ssl.SSLError
        for option, path in (("--tls-cert", cert), ("--tls-key", key)):
            if not Path(path).is_file():
                raise ArgumentError(f"{option} {quoted(path)}: no such file") from None
        raise ArgumentError(f"--tls-cert and --tls-key are not a certificate and its key: {error.strerror}") from None
