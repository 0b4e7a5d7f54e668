"""`glgpt federate status`: shows the rounds and members of a session (one model's training on many devices)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.commands.federate.common import call_gateway, check_extra
from glgpt.cli.common import add_json_option, report
from glgpt.errors import quoted
from glgpt.system.files import read_json

SHOWN_ROUNDS = 5  # maximum number of rounds that are listed as text


def add_parser(group: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        group,
        "status",
        run,
        "show a session's rounds and members",
        "glgpt federate status runs/together\nglgpt federate status runs/together --json",
    )
    p.add_argument("folder", metavar="RUN", help="run folder of glgpt federate serve --out")
    add_json_option(p, "print JSON, with all rounds")


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt federate status`."""
    check_extra()
    from glgpt.federation.serve import HOSTS
    from glgpt.federation.session import Files

    files = Files(Path(args.folder))
    session = files.session()
    path = files.folder / HOSTS
    told = read_json(path) if path.exists() else {"gateways": []}
    answers = [answer for host in told["gateways"] for answer in _asked(host)]
    if answers:
        found = {"running": True, **answers[0], "members": [m for answer in answers for m in answer["members"]]}
    else:
        found = {"running": False, "session": session.id, "name": session.name, "rounds": session.rounds}
        found |= {"done": files.round_of(), "members": [], "round": None, "history": files.notes()}
    if len(answers) > 1:
        found["gateways"] = [{"round": answer["round"]} for answer in answers]
    report(args, found, _status_text(found))
    return 0


def _asked(host: dict[str, str]) -> list[dict[str, Any]]:
    """Returns a list that holds a gateway's status; the list is empty if the gateway does not answer."""
    answer = call_gateway(host, "GET", "v1/status")
    return [] if answer is None else [answer]


def _status_text(found: dict[str, Any]) -> str:
    lines = [
        f"{found['name']}: {found['done']} of {found['rounds']} rounds" + ("" if found["running"] else ", not running")
    ]
    for r in [gateway["round"] for gateway in found.get("gateways", [found])]:
        if not r:
            continue
        lines.append(f"round {r['number']}: {r['answers']} of {r['asked']} answered, {r['seconds_left']:.0f} s left")
    for m in found["members"]:
        there = "connected" if m["connections"] else "offline"
        loss = "" if m["loss"] is None else f", loss {m['loss']:.4f}"
        lines.append(
            f"  {quoted(m['name'], 40)} ({m['kind']}, {there}): {m['accepted']} updates accepted{loss}; "
            f"last update: {quoted(m['said'] or 'none yet')}"
        )
    if len(found["history"]) > SHOWN_ROUNDS:
        lines.append(f"  (the last {SHOWN_ROUNDS} rounds; --json has all)")
    for line in found["history"][-SHOWN_ROUNDS:]:
        judged = f", validation {line['validation_loss']:.4f}" if "validation_loss" in line else ""
        lines.append(f"  round {line['round']}: loss {line.get('loss', float('nan')):.4f}{judged}")
    return "\n".join(lines)
