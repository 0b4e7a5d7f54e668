"""`glgpt federate`: serve, join, link and status."""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import ssl
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from glgpt.cli.commands import report
from glgpt.cli.operation.options import add_server_options, listening
from glgpt.cli.options import (
    DEVICE,
    Parser,
    above_zero,
    add_command,
    count,
    device,
    not_negative,
    positive,
)
from glgpt.cli.progress import progress
from glgpt.errors import ArgumentError, GlgptError, quoted
from glgpt.federation.aggregation.strategies import DEFAULT, STRATEGIES, get_strategy, names
from glgpt.federation.protocol import DTYPES, OUTER_LR, OUTER_MOMENTUM
from glgpt.system.files import read_json
from glgpt.system.network import is_web_address
from glgpt.system.outputs import output_folder
from glgpt.training.settings import PRESETS

LAST = 5  # rounds that `status` shows
EVAL_TOKENS = 1 << 14  # per validation: fewer than `glgpt train` takes, since every round has one
SETTINGS = ("tokenizer", "context", "batch", "lr", "seed", "warmup")  # options that are training settings
HOST_WARNING = "keep it secret: it makes its holder the host; glgpt federate link RUN prints another"
EXTRA = ("flwr", "websockets", "httpx")


def add_federate_commands(p: Parser) -> None:
    """Adds the subcommands of `glgpt federate`."""
    sub = p.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)

    def add(name: str, run: Any, text: str, examples: str, more: str = "") -> Parser:
        command = add_command(sub, name, text, examples, more)
        command.set_defaults(run=run)
        return command

    serve = add(
        "serve",
        run_serve,
        "host a session in which browsers and desktops train one model together",
        "glgpt federate serve play.txt --preset nano --rounds 20 --quorum 2 --out runs/together\n"
        "glgpt federate serve --out runs/together  # continues the session in this folder\n"
        "glgpt federate serve play.txt --out runs/class --host 0.0.0.0 --url http://192.168.1.20:8043/\n"
        "glgpt federate serve play.txt --out runs/private --strategy fedavg --dp-noise 1 --dp-clip 0.5",
        "Prints a link for browsers, one for desktops, and one for the host's dashboard. In each round, every device\n"
        "trains for --local-steps steps and sends its update; the host combines the updates into the shared model.",
    )
    _serve_options(serve)
    join = add(
        "join",
        run_join,
        "join a session and train on this machine's device",
        "glgpt federate join 'http://127.0.0.1:8043/#eyJ…'\n"
        "glgpt federate join 'http://127.0.0.1:8043/#eyJ…' diary.txt --name laptop",
        "Trains until the session ends or Ctrl-C. Your text stays on this machine; only updates are sent.",
    )
    join.add_argument("link", metavar="LINK", help="link that glgpt federate serve printed")
    join.add_argument("files", nargs="*", metavar="TEXT", help="your own text (default: a share of the host's)")
    join.add_argument("--name", default="", metavar="NAME", help="name of this device, visible to the others")
    join.add_argument("--device", type=device, default="auto", help=DEVICE)
    join.add_argument("--json", action="store_true", help="print one JSON object per line")
    link = add(
        "link",
        run_link,
        "print a new link to a running session's dashboard",
        "glgpt federate link runs/together\nglgpt federate link runs/together --rotate",
        "Each link works once, and makes its holder a host.",
    )
    link.add_argument("folder", metavar="RUN", help="run folder of glgpt federate serve --out")
    link.add_argument("--rotate", action="store_true", help="revoke all other dashboard links and open dashboards")
    link.add_argument("--json", action="store_true", help="print JSON")
    status = add(
        "status",
        run_status,
        "show a session's rounds and members",
        "glgpt federate status runs/together\nglgpt federate status runs/together --json",
    )
    status.add_argument("folder", metavar="RUN", help="run folder of glgpt federate serve --out")
    status.add_argument("--json", action="store_true", help="print JSON, with all rounds")


def _serve_options(p: Parser) -> None:
    p.add_argument("files", nargs="*", metavar="TEXT", help="UTF-8 text to train on; omit it to continue a session")
    p.add_argument("--out", metavar="RUN", required=True, help="folder of the run")
    p.add_argument(
        "--json", action="store_true", help="print one JSON object per line: ready, then each round, then done"
    )
    p.add_argument("--device", type=device, help="device that evaluates the shared model: " + DEVICE)

    g = p.add_argument_group("model (defaults are the preset's)")
    g.add_argument("--preset", choices=tuple(PRESETS), help="size to train; default nano")
    g.add_argument("--init", metavar="MODEL", help="fine-tune this checkpoint instead of random weights")
    for name, kind, text in (
        ("--tokenizer", str, "gpt2, bytes, bpe:N (BPE with N tokens, trained on the text), or a folder"),
        ("--context", positive, "context length, in tokens; with --init the model's, at most 2048"),
        ("--batch", positive, "batch size of a device: windows of --context tokens"),
        ("--lr", not_negative, "maximum learning rate of the devices"),
        ("--seed", count, "random seed of weights and batches (default 0)"),
        ("--warmup", count, "warmup steps of the learning rate"),
        ("--eval-tokens", count, f"validation tokens per round (default {EVAL_TOKENS})"),
    ):
        g.add_argument(name, type=kind, metavar="KIND" if kind is str else "N", help=text)

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
        help="maximum duration of a round, in seconds (default 120)",
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
    g.add_argument("--public", action="store_true", help="for sessions with strangers: clip updates and trim outliers")
    g.add_argument(
        "--dp-noise", type=not_negative, default=0.0, metavar="Z",
        help="differential privacy: noise multiplier, relative to the most that one device can change the mean; "
        f"reports epsilon; needs --strategy {' or '.join(names('supports_dp'))} (default 0: no noise)",
    )  # fmt: skip
    g.add_argument(
        "--dp-clip", type=above_zero, default=1.0, metavar="C",
        help="with --dp-noise, maximum norm of a device's update; each round prints the norms (default 1)",
    )  # fmt: skip
    g.add_argument("--dtype", choices=DTYPES, default="f16", help="number format of sent updates (default f16)")
    g.add_argument(
        "--shards", type=positive, default=256, metavar="N",
        help="shares of TEXT, one for each member without its own text (default 256)",
    )  # fmt: skip

    g = p.add_argument_group("network")
    g.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
    g.add_argument("--port", type=count, default=8043, metavar="PORT", help="0 takes a free one (default 8043)")
    g.add_argument(
        "--url", metavar="URL", action="append", default=[],
        help="public address of this host, for the links: behind a proxy, such as https://example.org/; "
        "one for each gateway",
    )  # fmt: skip
    g.add_argument(
        "--gateways", type=positive, default=1, metavar="N",
        help="processes that devices connect to, each with its own port and links; the quorum is divided among "
        "them (default 1, enough for a few hundred devices)",
    )  # fmt: skip
    g.add_argument(
        "--fleet-port", type=count, default=0, metavar="PORT",
        help="port on 127.0.0.1 to which Flower's own supernodes can connect, in addition to the gateways; "
        "a proxy should forward only its /v1/fleet/ (default: a free port)",
    )  # fmt: skip
    g.add_argument("--tls-cert", metavar="FILE", help="TLS certificate chain, PEM")
    g.add_argument("--tls-key", metavar="FILE", help="its private key, PEM")
    g.add_argument("--no-page", action="store_true", help="do not serve a page for browsers: desktops only")
    add_server_options(p, "info", file=False)  # each process has its own log file


def check_extra() -> None:
    """Raises GlgptError if the dependencies of `glgpt[federate]` are missing."""
    if sys.version_info < (3, 11):
        raise GlgptError("glgpt federate needs Python 3.11 or newer, as Flower does")
    if any(importlib.util.find_spec(name) is None for name in EXTRA):
        raise GlgptError('glgpt federate needs Flower: pip install "glgpt[federate]"')


def run_serve(args: argparse.Namespace) -> int:
    """`glgpt federate serve`."""
    check_extra()
    from glgpt.federation.serve import Operation, Place, Supervisor, export_page, fleet_place, places
    from glgpt.federation.session import ENDED, Files
    from glgpt.training.loop import stoppable

    _check_options(args)
    place = Place(args.host, args.port, args.tls_cert, args.tls_key)
    metrics_place = Place(*listening(args.metrics, "--metrics")) if args.metrics is not None else None
    if not Files(Path(args.out)).exists:
        # Checked before a new run is made. An existing session's ports may be held by processes of a killed `serve`.
        fleet_place(args.fleet_port, places(place, args.url, args.gateways))
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
        raise GlgptError(f"{quoted(args.out)} has completed its {session.rounds} rounds; use a new --out for another")
    why = ""
    if not args.no_page and not (files.page / "index.html").is_file():
        with progress("exporting the page", "B") as show:
            why = export_page(files, session, args.preset, show)
    metrics = places(metrics_place, (), session.gateways, "--metrics") if metrics_place else []
    operation = Operation(metrics, args.log_level, args.log_format)
    with stoppable() as stop:
        supervisor = Supervisor(
            files, place, args.url, args.device or "auto", lambda event: _tell(args, event), args.fleet_port, operation
        )

        def ready(links: list[dict[str, str]]) -> None:
            for link, at in zip(links, metrics, strict=False):
                link["metrics"] = f"{at.base()}metrics"
            _ready(args, session, links, why)

        done = supervisor.run(ready, lambda: bool(stop))
    folder = shlex.quote(args.out)
    rounds = files.round_of()
    figures = {"event": "done" if done else "stopped", "folder": args.out, "rounds": rounds}
    ended = (files.folder / ENDED).exists()
    further = f"try it: glgpt generate --model {folder}"
    if not done and not ended:
        further = f"continue it: glgpt federate serve --out {folder}"
    _say(
        args,
        figures,
        f"{quoted(args.out)}: {rounds} of {session.rounds} rounds{', ended by the host' if ended else ''}\n{further}",
    )
    return 128 + stop[0] if stop and not done else 0


def _roll_back(args: argparse.Namespace, files: Any) -> None:
    from glgpt.federation.operation.rollback import roll_back

    number = roll_back(files, args.rollback)
    _say(args, {"event": "rolled back", "rounds": number}, f"{quoted(args.out)} is back at round {number}")


def _check_options(args: argparse.Namespace) -> None:
    """Raises ArgumentError for invalid options and combinations of options."""
    if (args.tls_cert is None) != (args.tls_key is None):
        raise ArgumentError("--tls-cert and --tls-key must be given together")
    for url in args.url:
        if not is_web_address(url) or not _has_port(url) or urlsplit(url).query or urlsplit(url).fragment:
            raise ArgumentError(f"--url {quoted(url)} is not a web address, such as https://example.org/")
    if args.tls_cert:
        _check_certificate(args.tls_cert, args.tls_key)
    strategy = get_strategy(args.strategy)
    if args.dp_noise and not strategy.supports_dp:
        private = " or ".join(names("supports_dp"))
        raise ArgumentError(
            f"--dp-noise needs --strategy {private}: a device's effect on {args.strategy} is not bounded"
        )
    if args.gateways > args.shards:
        raise ArgumentError(f"{args.gateways} gateways need at least {args.gateways} --shards, not {args.shards}")
    if args.gateways > 1 and (args.public or strategy.needs_all_updates):
        comparing = " and ".join(names("needs_all_updates"))
        raise ArgumentError(f"--public, {comparing} need --gateways 1: they compare all updates with each other")
    if args.dp_noise and args.gateways > 1:
        raise ArgumentError("--dp-noise needs --gateways 1: a mean of the gateways' means weighs devices unequally")


def _has_port(url: str) -> bool:
    """True if an address has a valid port or none."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _check_certificate(cert: str, key: str) -> None:
    """Raises ArgumentError for a certificate or key that cannot be used."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as error:  # ssl.SSLError too
        for option, path in (("--tls-cert", cert), ("--tls-key", key)):
            if not Path(path).is_file():
                raise ArgumentError(f"{option} {quoted(path)}: no such file") from None
        raise ArgumentError(f"--tls-cert and --tls-key are not a certificate and its key: {error.strerror}") from None


def _unchanged(args: argparse.Namespace, session: Any) -> None:
    """Raises ArgumentError for an option that contradicts the session it continues."""
    from glgpt.federation.serve import Terms
    from glgpt.training.run_folder import RECORD

    options = {name: (default, getattr(session, name)) for name, default in asdict(Terms()).items()}
    options |= {name: (None, getattr(session.settings, name)) for name in SETTINGS}
    options["preset"] = (None, read_json(Path(args.out) / RECORD)["preset"])
    for name, (default, agreed) in options.items():
        asked = getattr(args, name, default)  # some terms are not options
        if asked not in (default, agreed) and not (name == "shards" and asked > agreed):
            option = "--" + name.replace("_", "-")
            where = f"{quoted(args.out)} holds a session with {option} {agreed}"
            raise ArgumentError(f"{where}; use a new --out for {asked}")


def _session(args: argparse.Namespace) -> Any:
    """Returns the session in `--out`, or begins a new one."""
    from glgpt.federation.serve import Terms, begin
    from glgpt.federation.session import Files
    from glgpt.training.events import TrainingCallbacks
    from glgpt.training.run_folder import RECORD

    files = Files(Path(args.out))
    if files.exists:
        if args.files and [str(Path(file).absolute()) for file in args.files] != read_json(files.run / RECORD)["files"]:
            raise GlgptError(f"{quoted(args.out)} holds a session on another text: omit TEXT to continue it")
        _unchanged(args, files.session())
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
        preset = None if args.init else args.preset or "nano"
        return begin(args.files, args.out, terms, preset, args.init, given, hooks)


def _say(args: argparse.Namespace, event: dict[str, Any], text: str) -> None:
    print(json.dumps(event, ensure_ascii=False, allow_nan=False) if args.json else text, flush=True)


def _ready(args: argparse.Namespace, session: Any, gateways: list[dict[str, str]], why: str) -> None:
    from glgpt.cli.qr import print_qr
    from glgpt.system.network import is_loopback

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
    _say(args, {"event": "ready", **links, "session": session.id, **more}, "\n".join(lines))
    if "browser" in links and not args.json and (args.url or not is_loopback(args.host)):
        print_qr(links["browser"])  # only of an address that a phone can reach


def _dashboard_lines(link: str) -> list[str]:
    """Returns lines with the dashboard's link, or with the reason why there is no dashboard."""
    from glgpt.page.built import built_dashboard

    try:
        built_dashboard()
    except GlgptError as error:
        return [f"dashboard:  {error}"]
    return [f"dashboard:  {link}", f"            (works once; {HOST_WARNING})"]


def _tell(args: argparse.Namespace, event: dict[str, Any]) -> None:
    if event["event"] == "restarted":
        _say(args, event, f"round {event['round']} is repeated: its ServerApp ended")
        return
    judged = f", validation {event['validation_loss']:.4f}" if "validation_loss" in event else ""
    spent = f", epsilon {event['epsilon']:.3g} at delta {event['delta']:g}" if "epsilon" in event else ""
    many = f"{event['clients']} device{'' if event['clients'] == 1 else 's'}"
    if "problem" in event:
        judged = f", not evaluated: {event['problem']}; --rollback 1 undoes the last round"
    text = f"round {event['round']}: {many}, {event['tokens']:,} tokens, loss {event['loss']:.4f}{judged}{spent}"
    _say(args, event, f"{text} ({event['seconds']:.1f} s)")


def run_join(args: argparse.Namespace) -> int:
    """`glgpt federate join`."""
    check_extra()
    from glgpt.federation.member.host import Link
    from glgpt.federation.member.join import Client, Hooks
    from glgpt.text.files import Text
    from glgpt.training.loop import stoppable

    link = Link.parse(args.link)
    text = Text.of_files(args.files) if args.files else None
    hooks = Hooks(
        on_state=lambda what: _say(args, {"event": "state", "state": what}, what),
        on_round=lambda said: _say(args, {"event": said["type"], **said}, _answer(said)),
    )
    with stoppable() as stop:
        client = Client(link, text, name=args.name, device=args.device, hooks=hooks)
        watch = threading.Thread(target=_watch, args=(stop, client.stop), daemon=True)
        watch.start()
        why = client.run()
    figures = {"event": "left", "rounds": client.rounds, "why": why}
    _say(args, figures, f"{client.rounds} rounds trained; {why}")
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


def run_status(args: argparse.Namespace) -> int:
    """`glgpt federate status`."""
    check_extra()

    from glgpt.federation.serve import HOSTS
    from glgpt.federation.session import Files

    files = Files(Path(args.folder))
    session = files.session()
    path = files.folder / HOSTS
    told = read_json(path) if path.exists() else {"gateways": []}
    answers = [answer for host in told.get("gateways", [told]) for answer in _asked(host)]
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
    """Returns a list with a gateway's status, empty if it does not answer."""
    answer = _call(host, "GET", "v1/status")
    return [] if answer is None else [answer]


def _call(host: dict[str, str], method: str, path: str, body: Any = None) -> dict[str, Any] | None:
    """Calls a gateway on this machine. Returns its answer, or None if there is none."""
    import httpx

    headers, trusted = {"Authorization": f"Bearer {host['token']}"}, ssl.create_default_context()
    try:
        answer = httpx.request(
            method, host["address"] + path, headers=headers, json=body, timeout=10, trust_env=False, verify=trusted
        )
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found
    except (httpx.HTTPError, OSError, ValueError):
        return None


def run_link(args: argparse.Namespace) -> int:
    """`glgpt federate link`."""
    check_extra()
    from glgpt.federation.serve import HOSTS
    from glgpt.federation.session import Files

    files = Files(Path(args.folder))
    files.session()
    path = files.folder / HOSTS
    links = []
    for host in read_json(path)["gateways"] if path.exists() else []:
        made = _call(host, "POST", "v1/host/link", {"rotate": args.rotate})
        if made is None:
            raise GlgptError(
                f"the gateway at {quoted(host['address'])} does not answer; is {quoted(args.folder)} being served?"
            )
        links.append(f"{host['address']}#host={made['token']}")
    if not links:
        name = quoted(args.folder)
        raise GlgptError(f"{name} is not being served; start it with glgpt federate serve --out {name}")
    report(args, {"dashboards": links}, "\n".join(links))
    return 0


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
            f"  {quoted(m['name'], 40)} ({m['kind']}, {there}): {m['accepted']} accepted{loss} {quoted(m['said'])}"
        )
    if len(found["history"]) > LAST:
        lines.append(f"  (the last {LAST} rounds; --json has all)")
    for line in found["history"][-LAST:]:
        judged = f", validation {line['validation_loss']:.4f}" if "validation_loss" in line else ""
        lines.append(f"  round {line['round']}: loss {line.get('loss', float('nan')):.4f}{judged}")
    return "\n".join(lines)
