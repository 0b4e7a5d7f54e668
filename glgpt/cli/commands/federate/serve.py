"""`glgpt federate serve`: hosts a session, in which devices train one model together in rounds."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from glgpt.cli.argument_parser import Subparsers, add_command
from glgpt.cli.commands.federate.common import check_extra, print_event
from glgpt.cli.commands.federate.serve_options import EVAL_TOKENS, add_serve_options, check_options
from glgpt.cli.operation.options import listening
from glgpt.cli.progress import progress
from glgpt.errors import ArgumentError, GlgptError, quoted
from glgpt.system.files import read_json
from glgpt.system.network import is_loopback
from glgpt.system.outputs import output_folder

SETTINGS = ("tokenizer", "context", "batch", "lr", "seed", "warmup")  # options that are training settings
HOST_WARNING = "keep it secret: it lets its holder control the session; glgpt federate link RUN prints another"


def add_parser(group: Subparsers) -> None:
    """Adds the command."""
    p = add_command(
        group,
        "serve",
        run,
        "host a session in which browsers and desktops train one model together",
        "glgpt federate serve play.txt --preset nano --rounds 20 --quorum 2 --out runs/together\n"
        "glgpt federate serve --out runs/together  # continues the session in this folder\n"
        "glgpt federate serve play.txt --out runs/class --host 0.0.0.0 --url http://192.168.1.20:8043/\n"
        "glgpt federate serve play.txt --out runs/private --strategy fedavg --dp-noise 1 --dp-clip 0.5",
        "Prints a link for browsers, one for desktops, and one for the host's dashboard. In each round, every device\n"
        "trains for --local-steps steps and sends its update; the host combines the updates into the shared model.",
    )
    add_serve_options(p)


def run(args: argparse.Namespace) -> int:
    """Runs `glgpt federate serve`."""
    check_extra()
    from glgpt.federation.serve import Operation, Place, Places, Supervisor, export_page
    from glgpt.federation.session import ENDED, Files
    from glgpt.training.loop import stoppable

    check_options(args)
    place = Place(args.host, args.port, args.tls_cert, args.tls_key)
    metrics = Place(*listening(args.metrics, "--metrics")) if args.metrics is not None else None
    if not Files(Path(args.out)).exists:
        # Checks the ports before a new run is made. The ports of an existing session are not checked, because processes
        # of a killed `serve` may still use these ports.
        Places.find(place, args.url, args.gateways, args.fleet_port, metrics)
    files = _session(args)
    if args.rollback:
        _roll_back(args, files)
    session = files.session()
    if (files.folder / ENDED).exists():
        raise GlgptError(
            f"{quoted(args.out)} was ended by its host after {files.round_of()} of {session.rounds} rounds; to train "
            "its model further, begin a session with --init"
        )
    if files.round_of() >= session.rounds:
        raise GlgptError(
            f"{quoted(args.out)} has completed its {session.rounds} rounds; use a new --out for another session"
        )
    why = ""
    if not args.no_page and not (files.page / "index.html").is_file():
        with progress("exporting the page", "B") as show:
            why = export_page(files, session, args.preset, show)
    operation = Operation(metrics, args.log_level, args.log_format)
    with stoppable() as stop:
        supervisor = Supervisor(
            files,
            place,
            args.url,
            args.device or "auto",
            lambda event: _print_round(args, event),
            args.fleet_port,
            operation,
        )

        def ready(links: list[dict[str, str]]) -> None:
            print_links(args, session, links, why)

        done = supervisor.run(ready, lambda: bool(stop))
    folder = shlex.quote(args.out)
    rounds = files.round_of()
    event = {"event": "done" if done else "stopped", "folder": args.out, "rounds": rounds}
    ended = (files.folder / ENDED).exists()
    further = f"try it: glgpt generate --model {folder}"
    if not done and not ended:
        further = f"continue it: glgpt federate serve --out {folder}"
    print_event(
        args,
        event,
        f"{quoted(args.out)}: {rounds} of {session.rounds} rounds{', ended by the host' if ended else ''}\n{further}",
    )
    return 128 + stop[0] if stop and not done else 0


def _roll_back(args: argparse.Namespace, files: Any) -> None:
    from glgpt.federation.operation.rollback import roll_back

    number = roll_back(files, args.rollback)
    print_event(args, {"event": "rolled back", "rounds": number}, f"{quoted(args.out)} is back at round {number}")


def _check_unchanged(args: argparse.Namespace, session: Any) -> None:
    """Raises ArgumentError if a given option differs from the terms of the session in `--out`.

    `--shards` may be above the session's number of shards, because a short text has fewer shards than requested.
    """
    from glgpt.federation.serve import Terms
    from glgpt.training.run_folder import RECORD

    options = {name: (default, getattr(session, name)) for name, default in asdict(Terms()).items()}
    options |= {name: (None, getattr(session.settings, name)) for name in SETTINGS}
    options["preset"] = (None, read_json(Path(args.out) / RECORD)["preset"])
    for name, (default, agreed) in options.items():
        asked = getattr(args, name, default)  # the command line has no option for some terms
        if asked not in (default, agreed) and not (name == "shards" and asked > agreed):
            option = "--" + name.replace("_", "-")
            where = f"{quoted(args.out)} holds a session with {option} {agreed}"
            raise ArgumentError(f"{where}; use a new --out for {asked}")


def _session(args: argparse.Namespace) -> Any:
    """Returns the files of the session in `--out`; begins a new session if there is none."""
    from glgpt.federation.serve import Terms, begin
    from glgpt.federation.session import Files
    from glgpt.training.events import TrainingCallbacks
    from glgpt.training.run_folder import RECORD

    files = Files(Path(args.out))
    if files.exists:
        if args.files and [str(Path(file).absolute()) for file in args.files] != read_json(files.run / RECORD)["files"]:
            raise GlgptError(f"{quoted(args.out)} holds a session on another text: omit TEXT to continue it")
        _check_unchanged(args, files.session())
        return files
    if args.rollback:
        raise ArgumentError(f"--rollback: {quoted(args.out)} holds no session")
    if not args.files:
        raise GlgptError("no text was given; give at least one file, or the --out of a session to continue")
    output_folder(args.out)
    asked = {name: getattr(args, name) for name in asdict(Terms()) if hasattr(args, name)}
    terms = Terms(**asked | {"round_seconds": float(args.round_seconds)})
    given = {n: getattr(args, n) for n in (*SETTINGS, "device")}
    given["eval_tokens"] = EVAL_TOKENS if args.eval_tokens is None else args.eval_tokens
    given = {name: value for name, value in given.items() if value is not None}
    with progress("preparing the run", "B") as show:
        hooks = TrainingCallbacks(on_progress=(lambda _, done, total: show(done, total)) if show else None)
        return begin(args.files, args.out, terms, args.preset, args.init, given, hooks)


def print_links(args: argparse.Namespace, session: Any, gateways: list[dict[str, str]], why: str) -> None:
    """Prints the links of a session, and a QR code of the browsers' link if a phone can reach it.

    `gateways` holds the links of each gateway, a process to which devices connect. `why` is the reason why the page
    could not be exported; it is empty if the page was exported, or is not wanted (`--no-page`).
    """
    from glgpt.cli.qr import print_qr

    lines = [
        f"{session.name}: {session.parameters:,} parameters, {session.rounds} rounds of {session.local_steps} steps"
    ]
    for number, links in enumerate(gateways, 1):
        lines += [f"gateway {number} of {len(gateways)}"] if len(gateways) > 1 else []
        if "browser" in links:
            lines += ["browsers:   " + links["browser"]]
        elif why:
            lines += [f"browsers:   no page: {why}"]
        lines += [f"desktops:   glgpt federate join '{links['desktop']}'", *_dashboard_lines(links["dashboard"])]
        lines += ["metrics:    " + links["metrics"]] if "metrics" in links else []
    links = gateways[0]
    more = {"gateways": gateways} if len(gateways) > 1 else {}
    print_event(args, {"event": "ready", **links, "session": session.id, **more}, "\n".join(lines))
    if "browser" in links and not args.json and (args.url or not is_loopback(args.host)):
        print_qr(links["browser"])


def _dashboard_lines(link: str) -> list[str]:
    """Returns lines with the dashboard's link, or with the reason why the dashboard is not served."""
    from glgpt.page.built import built_dashboard

    try:
        built_dashboard()
    except GlgptError as error:
        return [f"dashboard:  {error}"]
    return [f"dashboard:  {link}", f"            (works once; {HOST_WARNING})"]


def _print_round(args: argparse.Namespace, event: dict[str, Any]) -> None:
    if event["event"] == "restarted":
        why = "the process that ran it (Flower's ServerApp) ended"
        print_event(args, event, f"round {event['round']} is repeated: {why}")
        return
    judged = f", validation {event['validation_loss']:.4f}" if "validation_loss" in event else ""
    spent = f", epsilon {event['epsilon']:.3g} at delta {event['delta']:g}" if "epsilon" in event else ""
    many = f"{event['clients']} device{'' if event['clients'] == 1 else 's'}"
    if "problem" in event:
        judged = f", not evaluated: {event['problem']}; --rollback 1 undoes the last round"
    text = f"round {event['round']}: {many}, {event['tokens']:,} tokens, loss {event['loss']:.4f}{judged}{spent}"
    print_event(args, event, f"{text} ({event['seconds']:.1f} s)")
