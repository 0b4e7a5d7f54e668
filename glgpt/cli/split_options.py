"""Defines the options of commands that use split servers, and formats the traffic with those servers."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from glgpt.errors import ArgumentError, is_utf8
from glgpt.wire import hidden

if TYPE_CHECKING:
    from glgpt.inference.model import LanguageModel

TOKEN = "GLGPT_SPLIT_TOKEN"  # environment variable with the default of --token
WIRE = "number format of hidden states on the network (default f32, exact)"


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a command that can use split servers."""
    group = parser.add_argument_group("split over servers")
    group.add_argument(
        "--split", metavar="URL", help="let a server (glgpt split serve) run its blocks; this machine runs the others"
    )
    group.add_argument(
        "--plan", metavar="PLAN", help="who runs which blocks, such as 0-3@here,4-7@ws://a:8043,8-11@ws://b:8043"
    )
    group.add_argument("--wire", choices=hidden.FORMATS, help=WIRE)
    group.add_argument("--token", metavar="TEXT", help=f"secret of the servers (default: ${TOKEN})")
    parser.add_argument(
        "--speculate", action="store_true",
        help="speculative decoding: guess tokens from the text so far and check several in one step, or in one round "
        "trip to a server; the text is the same",
    )  # fmt: skip


def client_options(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the keyword arguments of `glgpt.load` for a split model; for other models, only `speculate`, if given."""
    if getattr(args, "split", None) is None and getattr(args, "plan", None) is None:
        for name in ("token", "wire"):
            if getattr(args, name, None):
                raise ArgumentError(f"--{name} needs --split or --plan")
        return {"speculate": True} if getattr(args, "speculate", False) else {}
    if args.split is not None and args.plan is not None:
        raise ArgumentError("--split and --plan cannot be combined; give one of them")
    where = {"rest": args.split} if args.plan is None else {"plan": args.plan}
    return {**where, "wire": args.wire or "f32", "token": get_token(args), "speculate": args.speculate}


def split_traffic(model: LanguageModel) -> list[dict[str, Any]]:
    """Returns the traffic and times of each stage (one machine's blocks) of a split model; [] for other models."""
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


def get_token(args: argparse.Namespace) -> str | None:
    """Returns the secret of the servers: `--token`, else the environment variable. Raises ArgumentError if invalid."""
    token = args.token or os.environ.get(TOKEN) or None
    if token is not None and not is_utf8(token):
        raise ArgumentError(f"--token or ${TOKEN} is not UTF-8 text; choose another token")
    return token
