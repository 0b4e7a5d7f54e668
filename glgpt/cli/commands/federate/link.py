"""`glgpt federate link`: prints new links to the dashboards of a session (one model's training on many devices)."""

from __future__ import annotations

import argparse
from pathlib import Path

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.commands.federate.common import call_gateway, check_extra
from glgpt.cli.common import add_json_option, report
from glgpt.errors import GlgptError, quoted
from glgpt.system.files import read_json


def add_parser(group: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        group,
        "link",
        run,
        "print a new link to the dashboard of each gateway of a running session",
        "glgpt federate link runs/together\nglgpt federate link runs/together --rotate",
        "Each link works once. The device that opens it controls the session. A gateway is a server of the session,\n"
        "to which devices connect.",
    )
    p.add_argument("folder", metavar="RUN", help="run folder of glgpt federate serve --out")
    p.add_argument(
        "--rotate",
        action="store_true",
        help="first revoke all earlier links, and log out all open dashboards",
    )
    add_json_option(p, "print JSON")


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt federate link`."""
    check_extra()
    from glgpt.federation.serve import HOSTS
    from glgpt.federation.session import Files

    files = Files(Path(args.folder))
    files.session()
    path = files.folder / HOSTS
    links = []
    for host in read_json(path)["gateways"] if path.exists() else []:
        made = call_gateway(host, "POST", "v1/host/link", {"rotate": args.rotate})
        if made is None:
            raise GlgptError(
                f"the gateway at {quoted(host['address'])} does not answer; is {quoted(args.folder)} being served?"
            )
        links.append(f"{host['base']}#host={made['token']}")
    if not links:
        name = quoted(args.folder)
        raise GlgptError(f"{name} is not being served; start it with glgpt federate serve --out {name}")
    report(args, {"dashboards": links}, "\n".join(links))
    return 0
