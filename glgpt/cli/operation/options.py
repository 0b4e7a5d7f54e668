"""Adds and applies options for operators of servers: a configuration file, logs and metrics."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator

from glgpt.cli.operation.config_file import OPTION
from glgpt.cli.operation.log import log_elsewhere
from glgpt.errors import ArgumentError, written
from glgpt.system.logs import LEVELS, STYLES, logging_to

logger = logging.getLogger(__name__)


def add_server_options(parser: argparse.ArgumentParser, level: str = "warning", file: bool = True) -> None:
    """Adds the options that `operated` applies, and `--config`, which `cli.argument_parser.Parser` reads.

    `level` is the default of `--log-level`. If `file` is True, `--log-file` is added too.
    """
    g = parser.add_argument_group("operation")
    text = "TOML file of options, named without the --; options on the command line take precedence"
    g.add_argument(OPTION, metavar="FILE", help=text)
    text = "serve Prometheus metrics at /metrics on this address (default: no metrics)"
    g.add_argument("--metrics", metavar="[HOST:]PORT", help=text)
    g.add_argument("--log-level", choices=LEVELS, default=level, help=f"minimum level to log (default {level})")
    g.add_argument("--log-format", choices=STYLES, default="text", help="json: one object per line (default text)")
    if not file:
        return
    text = "log to this file instead of stderr; at 8 MiB, a new file is begun, and the last 5 old files are kept"
    g.add_argument("--log-file", metavar="FILE", help=text)


@contextlib.contextmanager
def operated(args: argparse.Namespace) -> Iterator[None]:
    """Writes the log and serves metrics inside the block, as the options of `add_server_options` say.

    Raises ArgumentError for an address that cannot be used, and FileError for a log file that cannot be written.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(log_elsewhere())
        stack.enter_context(logging_to(args.log_file, args.log_level, args.log_format))
        if args.metrics is not None:
            from glgpt.system.metrics import metrics_server

            address = stack.enter_context(metrics_server(*listening(args.metrics, "--metrics")))
            logger.info("metrics are served", extra={"fields": {"url": address}})
        yield


def listening(text: str, option: str) -> tuple[str, int]:
    """Returns the host and port of an option. Raises ArgumentError unless `text` is PORT or HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or len(port) > 5 or int(port) > 65535 or (":" in host and host[:1] != "["):
        raise ArgumentError(f"{option} {written(text)} is not [HOST:]PORT, such as 8043 or 0.0.0.0:8043")
    return host.strip("[]") or "127.0.0.1", int(port)
