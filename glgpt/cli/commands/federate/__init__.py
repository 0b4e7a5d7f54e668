"""Defines `glgpt federate`: each subcommand has a file with `add_parser` and `run`. `common` has shared code."""

from __future__ import annotations

from glgpt.cli.argument_parser import Subparsers, add_group
from glgpt.cli.commands.federate import join, link, serve, status


def add_parser(sub: Subparsers) -> None:
    """Adds the command and its subcommands."""
    group = add_group(
        sub,
        "federate",
        "train one model together on many devices (federated learning)",
        "glgpt federate serve play.txt --preset nano --quorum 2 --out runs/together\n"
        "glgpt federate join 'http://127.0.0.1:8043/#eyJ…'\n"
        "glgpt federate status runs/together",
        "A host serves a session; browsers and other machines join with its link, train on their own text or on\n"
        'a share of the host\'s, and send updates in rounds. Needs pip install "glgpt[federate]".',
    )
    for command in (serve, join, link, status):
        command.add_parser(group)
