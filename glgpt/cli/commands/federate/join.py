"""`glgpt federate join`: trains on this machine as a member of a session (one model's training on many devices)."""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.commands.federate.common import check_extra, print_event
from glgpt.cli.common import DEVICE, add_json_option
from glgpt.cli.option_types import device
from glgpt.errors import quoted


def add_parser(group: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        group,
        "join",
        run,
        "join a session and train on this machine's device",
        "glgpt federate join 'http://127.0.0.1:8043/#eyJ…'\n"
        "glgpt federate join 'http://127.0.0.1:8043/#eyJ…' diary.txt --name laptop",
        "Trains until the session ends or Ctrl-C. Your text stays on this machine; only updates are sent.",
    )
    p.add_argument("link", metavar="LINK", help="link that glgpt federate serve printed")
    p.add_argument("files", nargs="*", metavar="TEXT", help="your own text (default: a share of the host's)")
    p.add_argument("--name", default="", metavar="NAME", help="name of this device, visible to the other members")
    p.add_argument("--device", type=device, default="auto", help=DEVICE)
    add_json_option(p, "print one JSON object per line")


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt federate join`."""
    check_extra()
    from glgpt.federation.member.host import Link
    from glgpt.federation.member.join import Client, Hooks
    from glgpt.text.files import Text
    from glgpt.training.loop import stoppable

    link = Link.parse(args.link)
    text = Text.of_files(args.files) if args.files else None
    hooks = Hooks(
        on_state=lambda what: print_event(args, {"event": "state", "state": what}, what),
        on_round=lambda said: print_event(args, {"event": said["type"], **said}, _answer(said)),
    )
    with stoppable() as stop:
        client = Client(link, text, name=args.name, device=args.device, hooks=hooks)
        watch = threading.Thread(target=_watch, args=(stop, client.stop), daemon=True)
        watch.start()
        why = client.run()
    event = {"event": "left", "rounds": client.rounds, "why": why}
    print_event(args, event, f"{client.rounds} rounds trained; {why}")
    return 128 + stop[0] if stop else 0


def _watch(stop: list[int], event: threading.Event) -> None:
    while not event.is_set():
        if stop:
            event.set()
        time.sleep(0.1)


def _answer(said: dict[str, Any]) -> str:
    if said["type"] == "accepted":
        return f"round {said['round']}: accepted, the update's norm is {said['norm']:.3g}"
    return f"round {said['round']}: rejected: {quoted(said['why'], 200)}"
