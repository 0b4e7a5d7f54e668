"""`glgpt federate serve`: creates or resumes a session and runs its processes until all rounds are done.

SuperLink (Flower's server), SuperExec (Flower's process that starts the ServerApp) and the gateways are separate
processes, and are restarted if they end. The ServerApp runs the rounds. If a run of the ServerApp fails, a new run
starts from the checkpoint. The process of `serve` evaluates the shared model after each round and writes the run
folder as `glgpt train` does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from glgpt.errors import ArgumentError, FileError, GlgptError, quoted
from glgpt.federation import protocol
from glgpt.federation.aggregation import strategies
from glgpt.federation.flower import processes
from glgpt.federation.flower.control import Control
from glgpt.federation.invitations import COMMANDS, HOST_LINK, digest
from glgpt.federation.member.supernode import terms_of
from glgpt.federation.operation.logs import rotate
from glgpt.federation.session import ENDED, Files, Session, recipe_of, seat_count
from glgpt.federation.session_evaluator import SessionEvaluator
from glgpt.system.files import read_json, write_json
from glgpt.system.locks import lock_folder
from glgpt.system.network import origin_of
from glgpt.text.dataset import Data
from glgpt.text.files import Text
from glgpt.text.tokenizer_training import identity
from glgpt.training.events import TrainingCallbacks
from glgpt.training.program import program_digest
from glgpt.training.run import new_run
from glgpt.training.settings import Settings

logger = logging.getLogger(__name__)
CHECK_INTERVAL_S = 0.5  # seconds between two checks of the processes
MAX_RESTARTS = 20  # maximum number of starts of a process within ten minutes; each finished round resets the count
# Seconds for which the token for commands on this machine is valid. Each start of `serve` replaces the token.
HOST_LIFE_S = 366 * 24 * 3600.0
SUPERLINK = "superlink.sqlite"  # database file, in the session's folder
PROCESSES = "processes"  # file in the session's folder: the process id of each process group's leader
# File in the session's folder. For each gateway, it has the local address, the base URL of links, and the token for the
# commands `glgpt federate link` and `status` on this machine.
HOSTS = "host.json"


@dataclass(frozen=True)
class Terms:
    """The terms that the host of a session chooses, in addition to the model. The fields of `Session` explain them."""

    rounds: int = 100
    local_steps: int = 25
    quorum: int = 1
    round_seconds: float = 120.0
    grace: float = 10.0
    strategy: str = strategies.DEFAULT
    outer_lr: float = protocol.OUTER_LR
    outer_momentum: float = protocol.OUTER_MOMENTUM
    public: bool = False
    dp_noise: float = 0.0
    dp_clip: float = 1.0
    dtype: str = "f16"
    shards: int = 256
    members: int = 256
    gateways: int = 1
    name: str = ""

    def check_quorum(self, shards: int) -> None:
        """Raises ArgumentError if a session with this many shards cannot have enough members for the quorum."""
        seats = seat_count(self.members, self.gateways, shards)
        if self.quorum > seats:
            raise ArgumentError(
                f"--quorum {self.quorum} is above the session's number of seats, {seats}: a session with"
                f" {shards} shards has at most {shards} members, and each gateway has {self.members} seats"
            )


@dataclass(frozen=True)
class Place:
    """The address on which a server process listens, and the URL by which browsers reach it."""

    host: str = "127.0.0.1"
    port: int = 8043
    tls_cert: str | None = None
    tls_key: str | None = None
    url: str | None = None  # the public URL, if it differs because of a proxy

    def base(self) -> str:
        """Returns the base URL for links."""
        if self.url:
            return self.url if self.url.endswith("/") else self.url + "/"
        return self._url(self.host)

    def local(self) -> str:
        """Returns the base URL for requests from this machine, which do not go through the proxy of `url`, if any."""
        return self._url("127.0.0.1" if self.host == "0.0.0.0" else self.host)

    def _url(self, host: str) -> str:
        return f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}/"

    def origin(self) -> str:
        """Returns the origin (scheme, host and port) that browsers send with the requests of pages at this address."""
        return origin_of(self.base())


@dataclass(frozen=True)
class Operation:
    """Options of the gateways: where they serve metrics, and the level and format of their logs.

    `metrics` is the address of the first gateway's metrics (None: no metrics). Each further gateway serves its metrics
    at the next port.
    """

    metrics: Place | None = None
    log_level: str = "info"
    log_format: str = "text"


def begin(
    files: list[str],
    out: str,
    terms: Terms,
    preset: str | None,
    init: str | None,
    given: dict[str, Any],
    hooks: TrainingCallbacks,
) -> Files:
    """Creates the run folder `out` and the session in it. Raises GlgptError for invalid terms or text.

    `given` holds the training settings that the user chose.
    """
    record = {"files": [str(Path(file).absolute()) for file in files], "preset": preset, "init": init}
    given = given | {"steps": terms.rounds * terms.local_steps}
    strategies.get_strategy(terms.strategy)  # raises for an unknown strategy, before the folder is created
    terms.check_quorum(terms.shards)

    def write(folder: Path, trainer: Any, data: Data, settings: Settings) -> None:
        parameters = protocol.flatten(trainer.parameters())
        shards = max(1, min(terms.shards, len(data.train) - settings.context))
        terms.check_quorum(shards)
        session = Session(
            id=secrets.token_hex(8),
            name=terms.name or Path(out).name,
            rounds=terms.rounds,
            local_steps=terms.local_steps,
            quorum=terms.quorum,
            round_seconds=terms.round_seconds,
            grace=terms.grace,
            strategy=terms.strategy,
            outer_lr=terms.outer_lr,
            outer_momentum=terms.outer_momentum,
            public=terms.public,
            dp_noise=terms.dp_noise,
            dp_clip=terms.dp_clip,
            dtype=terms.dtype,  # type: ignore[arg-type]  # checked by `Session`
            shards=shards,
            members=terms.members,
            gateways=terms.gateways,
            digest=program_digest(trainer.config, recipe_of(settings)),
            tokenizer=identity(folder),
            config=trainer.config.fields(),
            settings=settings,
            train_tokens=len(data.train),
            parameters=len(parameters),
        )
        Files(folder).create(session, parameters, data.train)

    with new_run(Text.of_files(files), record, out, given, hooks, write) as made:
        return Files(made.run.path)


def export_page(files: Files, session: Session, preset: str | None, progress: Callable[[int, int], None] | None) -> str:
    """Exports the page with which browsers join. Returns "", or the reason if the page cannot be exported."""
    from glgpt.page.export import export
    from glgpt.page.export_options import ExportOptions
    from glgpt.page.training import Size

    try:
        kind = "bytes" if session.settings.tokenizer == "bytes" else f"bpe:{session.model.vocab_size}"
        size = Size(preset or "model", kind, session.model, session.recipe, session.settings)
        export(files.run, files.page, ExportOptions("f32", train=(size,)), progress=progress)
    except GlgptError as error:
        return str(error)
    return ""


@dataclass
class Process:
    """A child process that is restarted when it ends."""

    name: str
    command: Callable[[], list[str]]
    environment: dict[str, str]
    log: Path
    child: subprocess.Popen[bytes] | None = None
    starts: list[float] = field(default_factory=list)

    def ensure(self) -> bool:
        """Starts the process unless it runs. Returns True if it was started.

        Raises GlgptError if the process has ended too often.
        """
        if self.child is not None and self.child.poll() is None:
            return False
        if self.child is not None:
            logger.warning(
                "the %s ended (exit status %s) and is restarted; see %s", self.name, self.child.returncode, self.log
            )
        now = time.monotonic()
        self.starts = [*(at for at in self.starts if now - at < 600), now]
        if len(self.starts) > MAX_RESTARTS:
            raise GlgptError(f"the {self.name} ended {MAX_RESTARTS} times in ten minutes; see {self.log}")
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                self.command(), env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches only this process, which ends its children in order
            )  # fmt: skip
        return True

    def forgive(self) -> None:
        """Resets the count of restarts, because the session makes progress."""
        self.starts.clear()

    def end(self, patience: float = 5.0) -> None:
        """Ends the process and its children: by SIGTERM, and after at most `patience` seconds by SIGKILL."""
        if self.child is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(patience)
                if number == signal.SIGTERM:
                    continue  # the children of the process may still run; SIGKILL ends them
                return


def places(
    first: Place, urls: Sequence[str], gateways: int, option: str = "--host and --port", used: Container[int] = ()
) -> list[Place]:
    """Returns a `Place` for each gateway, with consecutive ports from the port of `first` on (0: any free ports).

    Never returns a port in `used`. Raises ArgumentError if an address cannot be used, or if the number of `urls` is not
    the number of gateways. `option` names the command-line option that sets the address, for the error message.
    """
    if urls and len(urls) != gateways:
        raise ArgumentError(f"{len(urls)} --url for {gateways} gateways; give one --url per gateway, or none")
    with contextlib.ExitStack() as stack:
        found = []
        for i in range(gateways):
            port = first.port and first.port + i
            if port in used:
                raise ArgumentError(f"{option} {port} is another server's port; choose another")
            while (free := _bound_port(stack, first.host, port, option)) in used:
                pass
            found.append(replace(first, port=free, url=urls[i] if urls else None))
        return found


def _bound_port(stack: contextlib.ExitStack, host: str, port: int, option: str) -> int:
    """Binds a port (0: any free port) until `stack` closes, and returns the port. Raises ArgumentError on failure."""
    opened = stack.enter_context(socket.socket())
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if not host:  # `bind` would listen on all addresses
            raise UnicodeError
        opened.bind((host, port))
    except (OSError, OverflowError, TypeError, UnicodeError) as error:  # TypeError: a host that is not a name
        wrong = "it must be from 0 to 65535" if isinstance(error, OverflowError) else "it is not an address"
        why = getattr(error, "strerror", None) or wrong
        shown = f"{quoted(host) or 'an empty host'}:{port}"
        raise ArgumentError(f"{shown} cannot be used: {why}; change it with {option}") from None
    return int(opened.getsockname()[1])


@dataclass(frozen=True)
class Places:
    """The addresses of a session's servers."""

    gateways: list[Place]
    superlink: Place
    metrics: list[Place]  # one per gateway; empty: no metrics

    @classmethod
    def find(cls, first: Place, urls: Sequence[str], gateways: int, fleet_port: int, metrics: Place | None) -> Places:
        """Returns the addresses, with consecutive ports for several gateways (0: any free ports).

        `first` is the address of the first gateway, and `metrics` is the address of that gateway's metrics. Raises
        ArgumentError if an address cannot be used, if there are too few or too many `urls`, or if two servers would
        have the same port.
        """
        wanted = [("--host and --port", first, urls, gateways), ("--fleet-port", Place(port=fleet_port), (), 1)]
        wanted += [("--metrics", metrics, (), gateways)] if metrics else []
        found: dict[str, list[Place]] = {}
        used: list[int] = []
        # Begins with the addresses whose port is given, so that free ports for the others differ from the given ports.
        for option, place, own, count in sorted(wanted, key=lambda w: not w[1].port):
            found[option] = places(place, own, count, option, used)
            used += [place.port for place in found[option]]
        return cls(found["--host and --port"], found["--fleet-port"][0], found.get("--metrics", []))


def end_leftovers(files: Files) -> None:
    """Ends the processes that a killed `serve` has left. Does nothing on systems without /proc, such as macOS.

    If left running, they would occupy ports of the new `serve`, and an old and a new gateway would answer one round.
    """
    noted = files.folder / PROCESSES
    leaders = set(map(int, noted.read_text().split() if noted.exists() else ()))
    ours, left = str(files.run.absolute()).encode(), []
    for process in Path("/proc").glob("[0-9]*") if leaders else ():
        # Compares process groups, because a ServerApp stays in its process group after the group's leader has ended.
        with contextlib.suppress(OSError):
            if ours in (process / "cmdline").read_bytes() and os.getpgid(int(process.name)) in leaders:
                os.kill(int(process.name), signal.SIGKILL)
                left.append(int(process.name))
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    """True if any thread of a process runs. Until all its threads have ended, a process holds its sockets."""
    try:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return _alive(pid)  # a thread ended while its state was read
    return any(state not in "ZX" for state in states)


class Supervisor:
    """Runs the processes of a session and reports its events."""

    def __init__(
        self,
        files: Files,
        place: Place,
        urls: Sequence[str],
        device: str | int,
        tell: Callable[[dict[str, Any]], None],
        fleet_port: int = 0,
        operation: Operation | None = None,
    ) -> None:
        files = Files(files.run.absolute(), files.site)  # `end_leftovers` finds this path in the commands of processes
        self.files, self.tell = files, tell
        self.session = files.session()
        unlock = lock_folder(files.folder)
        if unlock is None:
            raise FileError(f"{quoted(files.run, 300)} is being served by another process")
        self._unlock = unlock
        end_leftovers(files)
        self.operation = operation or Operation()
        self.places = Places.find(place, urls, self.session.gateways, fleet_port, self.operation.metrics)
        self.evaluator = SessionEvaluator(files, device)
        self._serverapp = files.folder / "serverapp.pid"
        self._serverapp.unlink(missing_ok=True)
        secret, home = files.folder / "superexec.key", files.folder / "flower"
        home.mkdir(exist_ok=True)
        environment = processes.environment(home)
        port = self.places.superlink.port
        self.database = files.folder / SUPERLINK
        processes.shrink_database(self.database)
        self.superlink = self._process(
            "superlink", lambda: processes.superlink_command(port, self.database, secret), environment
        )
        self.superexec = self._process(
            "superexec", lambda: processes.superexec_command(port, secret, self._serverapp), environment
        )
        # With more arenas, malloc would retain memory for each thread that decodes updates.
        few = {"MALLOC_ARENA_MAX": "2"}
        self.gateways = [
            self._process(
                f"gateway-{site}" if site else "gateway", partial(self._gateway_command, site), environment | few
            )
            for site in range(self.session.gateways)
        ]
        self._control: Control | None = None
        self._run: int | None = None
        self._asked = 0.0

    def _process(self, name: str, command: Callable[[], list[str]], environment: dict[str, str]) -> Process:
        return Process(name, command, environment, self.files.logs / f"{name}.log")

    def _gateway_command(self, site: int) -> list[str]:
        p = self.places.gateways[site]
        command = [sys.executable, "-m", "glgpt.federation.gateway", str(self.files.run.absolute())]
        command += ["--site", str(site)]
        command += ["--host", p.host, "--port", str(p.port), "--superlink", f"127.0.0.1:{self.places.superlink.port}"]
        if p.url:
            command += ["--origin", p.origin()]
            command += [] if p.tls_cert else ["--proxied"]
        if p.tls_cert and p.tls_key:
            command += ["--tls-cert", p.tls_cert, "--tls-key", p.tls_key]
        o = self.operation
        if o.metrics:
            command += ["--metrics", o.metrics.host, str(self.places.metrics[site].port)]
        return [*command, "--log-level", o.log_level, "--log-format", o.log_format]

    @property
    def processes(self) -> list[Process]:
        """Returns the processes in the order in which they start."""
        return [self.superlink, *self.gateways, self.superexec]

    def _ensure(self) -> None:
        for process in self.processes:
            if process.ensure():  # record the process at once: if this `serve` is killed, the next one must find it
                pids = [str(p.child.pid) for p in self.processes if p.child is not None]
                (self.files.folder / PROCESSES).write_text("\n".join(pids) + "\n")

    # -- the run of the ServerApp -----------------------------------------------------------------------------------

    def _watch_run(self) -> None:
        """Starts a run of the ServerApp from the checkpoint if no run is active, as at first and after a failure."""
        if time.monotonic() - self._asked < 2:
            return
        self._asked = time.monotonic()
        try:
            self._control = self._control or Control(self.places.superlink.port)
            active = [run for run in self._control.runs() if not run.status.startswith("finished")]
            for run in active:
                if run.run_id != self._run:  # started by an earlier `serve`; its ServerApp may be gone
                    self._control.stop(run.run_id)
            mine = next((run for run in active if run.run_id == self._run), None)
            if mine is not None and mine.status == "running" and self._serverapp_gone():
                self._control.stop(mine.run_id)  # SuperLink itself might notice the end only after a minute
                mine = None
            if mine is None:
                again = self._run is not None
                terms = terms_of(self.session, self.files.tokenizer_files())
                self._run = self._control.start(self.files.run.absolute(), terms)
                if again:
                    self.tell({"event": "restarted", "round": self.files.round_of() + 1})
        except httpx.HTTPError:
            if self._control is not None:
                self._control.close()
            self._control = None

    def _serverapp_gone(self) -> bool:
        """True if the ServerApp's process has ended, so that its run cannot continue."""
        try:
            os.kill(int(self._serverapp.read_text("utf-8")), 0)
        except ProcessLookupError:
            return True
        except (OSError, ValueError):
            return False
        return False

    # -- the session ------------------------------------------------------------------------------------------------

    def links(self) -> list[dict[str, str]]:
        """Returns the links of each gateway: for desktops, for browsers, to the host's dashboard, to the metrics.

        Leaves out the link for browsers if no page was exported, and the link to the metrics if metrics are off.
        Also replaces each gateway's token for the commands `glgpt federate link` and `status` on this machine.
        """
        path = self.files.folder / HOSTS
        before = read_json(path).get("gateways", []) if path.exists() else []
        found, hosts = [], []
        for site, place in enumerate(self.places.gateways):
            invitations = Files(self.files.run, site).invitations()
            for old in before:
                invitations.revoke(digest(old["token"]))
            base, token = place.base(), invitations.create()
            commands = invitations.create(HOST_LIFE_S, None, COMMANDS)
            hosts.append({"token": commands, "address": place.local(), "base": base})
            links = {"desktop": f"{base}#{token}", "dashboard": f"{base}#host={invitations.create(kind=HOST_LINK)}"}
            if (self.files.page / "index.html").is_file():
                links["browser"] = f"{base}train/#view=train&tokens=1&together={token}"
            if self.places.metrics:
                links["metrics"] = f"{self.places.metrics[site].base()}metrics"
            found.append(links)
        write_json(path, {"gateways": hosts}, private=True)
        return found

    def run(self, ready: Callable[[list[dict[str, str]]], None], stopped: Callable[[], bool]) -> bool:
        """Runs all processes until all rounds are done, the host ends the session, or a signal stops this process.

        Returns True if all rounds are done. Calls `ready` with the links when all gateways accept connections.
        `stopped` returns True after a signal.
        """
        links = self.links()
        said = False
        try:
            while True:
                self._ensure()
                for process in self.processes:
                    rotate(process.log)
                self._watch_run()
                if not said and self._listening():
                    ready(links)
                    said = True
                done = self.files.round_of()
                for figures in self.evaluator.catch_up(done):
                    self.tell({"event": "round", **figures})
                    for process in self.processes:
                        process.forgive()
                    processes.trim_database(self.database)
                ended = (self.files.folder / ENDED).exists()
                if done >= self.session.rounds or ended:
                    self._let_clients_hear()
                    return done >= self.session.rounds
                if stopped():
                    return False
                time.sleep(CHECK_INTERVAL_S)
        finally:
            for process in reversed(self.processes):
                process.end()
            (self.files.folder / PROCESSES).unlink(missing_ok=True)
            processes.shrink_database(self.database)
            self.evaluator.close()
            self._unlock()

    def _listening(self) -> bool:
        try:
            for place in self.places.gateways:
                socket.create_connection((place.host, place.port), 1).close()
            return True
        except OSError:
            return False

    def _let_clients_hear(self) -> None:
        time.sleep(3)  # gateways check once a second whether the session has ended, and then notify their clients
