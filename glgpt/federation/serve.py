"""`glgpt federate serve`: makes or resumes a session and keeps its processes running until the rounds are done.

SuperLink, SuperExec (which starts the ServerApp) and the gateways are processes of their own and are started again when
they die; a run of the ServerApp that failed is followed by one from the checkpoint. This process evaluates the shared
model after each round and keeps the run folder as `glgpt train` leaves it.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np

from glgpt.errors import ArgumentError, FileError, GlgptError, quoted
from glgpt.federation import flower, protocol
from glgpt.federation.invitations import COMMANDS, HOST_LINK, digest
from glgpt.federation.member.supernode import terms_of
from glgpt.federation.operation.logs import rotate
from glgpt.federation.session import ENDED, Files, Session, recipe_of
from glgpt.federation.session_evaluator import SessionEvaluator
from glgpt.system.files import read_json, write_json
from glgpt.system.locks import lock_folder
from glgpt.system.network import in_address
from glgpt.text.dataset import Data
from glgpt.text.files import Text
from glgpt.text.tokenizer_training import identity
from glgpt.training.events import Hooks
from glgpt.training.program import program_digest
from glgpt.training.run import new_run
from glgpt.training.settings import Settings

logger = logging.getLogger(__name__)
WATCH = 0.5  # seconds between two looks at the processes
PATIENCE = 180.0  # seconds in which SuperLink must answer after its start
LOST = 45.0  # seconds after which a run that SuperLink calls running has no ServerApp: its heartbeat is 30
RESTARTS = 20  # of one process within ten minutes and one round, before it is given up
HOST_LIFE = 366 * 24 * 3600.0  # of the token of this machine's own commands, which each start replaces
SUPERLINK = "superlink.sqlite"  # there too
PROCESSES = "processes"  # in the session's folder: who leads each group of processes
HOSTS = "host.json"  # there too: each gateway's address and the host's token


@dataclass(frozen=True)
class Terms:
    """What a host decides about a session, beside the model."""

    rounds: int = 100
    local_steps: int = 25
    quorum: int = 1
    round_seconds: float = 120.0
    grace: float = 10.0
    strategy: str = "diloco"
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


@dataclass(frozen=True)
class Place:
    """Where a gateway listens, and how others reach it."""

    host: str = "127.0.0.1"
    port: int = 8043
    tls_cert: str | None = None
    tls_key: str | None = None
    url: str | None = None  # how browsers reach it behind a proxy

    def base(self) -> str:
        """The address that links carry."""
        if self.url:
            return self.url if self.url.endswith("/") else self.url + "/"
        return f"{'https' if self.tls_cert else 'http'}://{self.host}:{self.port}/"

    def origin(self) -> str:
        """The origin of pages at this address as browsers send it: without a path or the scheme's own port."""
        split = urlsplit(self.base())
        port = "" if split.port in (None, {"http": 80, "https": 443}[split.scheme]) else f":{split.port}"
        return f"{split.scheme}://{in_address(split.hostname or '')}{port}"


@dataclass(frozen=True)
class Operation:
    """Options of the gateways for operators: where each serves its metrics, if anywhere, and how they log."""

    metrics: Sequence[Place] = ()
    log_level: str = "info"
    log_format: str = "text"


def begin(
    files: list[str], out: str, terms: Terms, preset: str | None, init: str | None, given: dict[str, Any], hooks: Hooks
) -> Files:
    """Makes the run folder and the session in it. Raises GlgptError for terms or a text that cannot be."""
    record = {"files": [str(Path(file).absolute()) for file in files], "preset": preset, "init": init}
    given = given | {"steps": terms.rounds * terms.local_steps}

    def write(folder: Path, trainer: Any, data: Data, settings: Settings) -> None:
        parameters = protocol.flatten(trainer.parameters())
        session = Session(
            id=secrets.token_hex(8),
            name=terms.name or Path(out).name,
            rounds=terms.rounds,
            local_steps=terms.local_steps,
            quorum=terms.quorum,
            round_seconds=terms.round_seconds,
            grace=terms.grace,
            strategy=terms.strategy,  # type: ignore[arg-type]  # checked by the model
            outer_lr=terms.outer_lr,
            outer_momentum=terms.outer_momentum,
            public=terms.public,
            dp_noise=terms.dp_noise,
            dp_clip=terms.dp_clip,
            dtype=terms.dtype,  # type: ignore[arg-type]
            shards=max(1, min(terms.shards, len(data.train) - settings.context)),
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
    """Exports the page that joins the session; gives why there is none, where there cannot be one."""
    from glgpt.page.export import export
    from glgpt.page.training import Size

    try:
        kind = "bytes" if session.settings.tokenizer == "bytes" else f"bpe:{session.model.vocab_size}"
        size = Size(preset or "model", kind, session.model, session.recipe, session.settings)
        export(files.run, files.page, "f32", train=(size,), progress=progress)
    except GlgptError as error:
        return str(error)
    return ""


@dataclass
class Process:
    """A process that is started again when it ends."""

    name: str
    command: Callable[[], list[str]]
    environment: dict[str, str]
    log: Path
    child: subprocess.Popen[bytes] | None = None
    starts: list[float] = field(default_factory=list)

    def ensure(self) -> bool:
        """Starts it where it does not run; True when it did. Raises GlgptError for one that keeps dying."""
        if self.child is not None and self.child.poll() is None:
            return False
        if self.child is not None:
            logger.warning(
                "the %s ended with %s and is started again; its log is %s", self.name, self.child.returncode, self.log
            )
        now = time.monotonic()
        self.starts = [*(at for at in self.starts if now - at < 600), now]
        if len(self.starts) > RESTARTS:
            raise GlgptError(f"the {self.name} ended {RESTARTS} times in one round; its log is {self.log}")
        self.log.parent.mkdir(exist_ok=True)
        with self.log.open("ab") as log:
            self.child = subprocess.Popen(
                self.command(), env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,  # so that a Ctrl-C ends them in order
            )  # fmt: skip
        return True

    def forgive(self) -> None:
        """Counts its ends from now on: the session goes on in spite of them."""
        self.starts.clear()

    def end(self, patience: float = 5.0) -> None:
        """Ends it with all that it started."""
        if self.child is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.wait(patience)
                if number == signal.SIGTERM:
                    continue  # what it started may be slower
                return


def places(first: Place, urls: Sequence[str], gateways: int, option: str = "--host and --port") -> list[Place]:
    """A place a gateway: ports from the first one's on, free ones for 0.

    Raises ArgumentError for an address that cannot be used, which `option` chooses, and for more or fewer `urls` than
    gateways.
    """
    if urls and len(urls) != gateways:
        raise ArgumentError(f"{len(urls)} --url for {gateways} gateways: each has an address of its own")
    with contextlib.ExitStack() as stack:
        found = []
        for i in range(gateways):
            opened = stack.enter_context(socket.socket())
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port = first.port and first.port + i
            try:
                opened.bind((first.host, port))
            except (OSError, OverflowError) as error:
                why = getattr(error, "strerror", None) or "it must be from 0 to 65535"
                raise ArgumentError(f"{first.host}:{port} cannot be used: {why}; choose others with {option}") from None
            url = urls[i] if urls else None
            found.append(replace(first, port=int(opened.getsockname()[1]), url=url))
        return found


def fleet_place(port: int, gateways: Sequence[Place]) -> Place:
    """Where SuperLink listens, on a free port for 0. Raises ArgumentError for a port that is used, by a gateway too."""
    if port in [place.port for place in gateways]:
        raise ArgumentError(f"--fleet-port {port} is a gateway's; choose another")
    return places(Place(port=port), (), 1, "--fleet-port")[0]


def end_leftovers(files: Files) -> None:
    """Ends the processes of a `serve` that was killed: they hold its port, and two gateways would answer one round."""
    noted = files.folder / PROCESSES
    leaders = set(map(int, noted.read_text().split() if noted.exists() else ()))
    ours, left = str(files.run.absolute()).encode(), []
    for process in Path("/proc").glob("[0-9]*") if leaders else ():
        with contextlib.suppress(OSError):  # one whose leader has ended, such as a ServerApp, is in its group still
            if ours in (process / "cmdline").read_bytes() and os.getpgid(int(process.name)) in leaders:
                os.kill(int(process.name), signal.SIGKILL)
                left.append(int(process.name))
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in left) and time.monotonic() < deadline:
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    """Whether a process still holds its sockets: a thread of it runs, even if its first one ended."""
    try:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:
        return _alive(pid)  # a thread ended between the two looks
    return any(state not in "ZX" for state in states)


class Supervisor:
    """The processes of a session, and what is told of it."""

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
        files = Files(files.run.absolute(), files.site)  # by which commands are found again
        self.files, self.tell = files, tell
        self.session = files.session()
        unlock = lock_folder(files.folder)
        if unlock is None:
            raise FileError(f"{quoted(files.run, 300)} is being served by another process")
        self._unlock = unlock
        end_leftovers(files)
        if not np.isfinite(files.checkpoint().parameters).all():  # of an older version
            raise FileError(
                f"{quoted(files.run, 300)}: the last checkpoint is not finite; --rollback 1 undoes its round"
            )
        self.places, self.operation = places(place, urls, self.session.gateways), operation or Operation()
        self.evaluator = SessionEvaluator(files, device)
        self.superlink_port = fleet_place(fleet_port, self.places).port
        self._serverapp = files.folder / "serverapp.pid"
        self._serverapp.unlink(missing_ok=True)
        secret, home = files.folder / "superexec.key", files.folder / "flower"
        home.mkdir(exist_ok=True)
        environment = flower.environment(home)
        port = self.superlink_port
        self.database = files.folder / SUPERLINK
        flower.shrink_database(self.database)
        self.superlink = self._process(
            "superlink", lambda: flower.superlink_command(port, self.database, secret), environment
        )
        self.superexec = self._process(
            "superexec", lambda: flower.superexec_command(port, secret, self._serverapp), environment
        )
        few = {"MALLOC_ARENA_MAX": "2"}  # decoding in threads else leaves each one's memory behind
        self.gateways = [
            self._process(
                f"gateway-{site}" if site else "gateway", partial(self._gateway_command, site), environment | few
            )
            for site in range(self.session.gateways)
        ]
        self._control: flower.Control | None = None
        self._run: int | None = None
        self._asked = 0.0

    def _process(self, name: str, command: Callable[[], list[str]], environment: dict[str, str]) -> Process:
        return Process(name, command, environment, self.files.logs / f"{name}.log")

    def _gateway_command(self, site: int) -> list[str]:
        p = self.places[site]
        command = [sys.executable, "-m", "glgpt.federation.gateway", str(self.files.run.absolute())]
        command += ["--site", str(site)]
        command += ["--host", p.host, "--port", str(p.port), "--superlink", f"127.0.0.1:{self.superlink_port}"]
        if p.url:
            command += ["--origin", p.origin()]
            command += [] if p.tls_cert else ["--proxied"]
        if p.tls_cert and p.tls_key:
            command += ["--tls-cert", p.tls_cert, "--tls-key", p.tls_key]
        o = self.operation
        if o.metrics:
            command += ["--metrics", o.metrics[site].host, str(o.metrics[site].port)]
        return [*command, "--log-level", o.log_level, "--log-format", o.log_format]

    @property
    def processes(self) -> list[Process]:
        """In the order of their start."""
        return [self.superlink, *self.gateways, self.superexec]

    def _ensure(self) -> None:
        for process in self.processes:
            if process.ensure():  # noted at once: a `serve` that is killed now must find it
                pids = [str(p.child.pid) for p in self.processes if p.child is not None]
                (self.files.folder / PROCESSES).write_text("\n".join(pids) + "\n")

    # -- the run of the ServerApp -----------------------------------------------------------------------------------

    def _watch_run(self) -> None:
        """Starts a run where none is under way: the first, or one from the checkpoint after another failed."""
        if time.monotonic() - self._asked < 2:
            return
        self._asked = time.monotonic()
        try:
            self._control = self._control or flower.Control(self.superlink_port)
            active = [run for run in self._control.runs() if not run.status.startswith("finished")]
            for run in active:
                if run.run_id != self._run:  # of an earlier `serve`: its ServerApp may be gone
                    self._control.stop(run.run_id)
            mine = next((run for run in active if run.run_id == self._run), None)
            if mine is not None and mine.status == "running" and self._serverapp_gone():
                self._control.stop(mine.run_id)  # SuperLink would notice within a minute
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
        """Whether the ServerApp's process has ended: it cannot resume, the next one starts from the checkpoint."""
        try:
            os.kill(int(self._serverapp.read_text("utf-8")), 0)
        except ProcessLookupError:
            return True
        except (OSError, ValueError):
            return False
        return False

    # -- all of it --------------------------------------------------------------------------------------------------

    def links(self) -> list[dict[str, str]]:
        """Of each gateway a link for browsers, one for desktops, and the host's, which is for nobody else."""
        path = self.files.folder / HOSTS
        before = read_json(path).get("gateways", []) if path.exists() else []
        found, hosts = [], []
        for site, place in enumerate(self.places):
            invitations = Files(self.files.run, site).invitations()
            for old in before:
                invitations.revoke(digest(old["token"]))
            base, token = place.base(), invitations.create()
            hosts.append({"token": invitations.create(HOST_LIFE, None, COMMANDS), "address": base})
            links = {"desktop": f"{base}#{token}", "dashboard": f"{base}#host={invitations.create(kind=HOST_LINK)}"}
            if (self.files.page / "index.html").is_file():
                links["browser"] = f"{base}train/#view=train&tokens=1&together={token}"
            found.append(links)
        write_json(path, {"gateways": hosts}, private=True)
        return found

    def run(self, ready: Callable[[list[dict[str, str]]], None], stopped: Callable[[], bool]) -> bool:
        """Keeps all going until the rounds are done (True), or the host or a signal ends it (False)."""
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
                    flower.trim_database(self.database)
                if done >= self.session.rounds:
                    self._let_clients_hear()
                    return True
                if stopped() or (self.files.folder / ENDED).exists():
                    return False
                time.sleep(WATCH)
        finally:
            for process in reversed(self.processes):
                process.end()
            (self.files.folder / PROCESSES).unlink(missing_ok=True)
            flower.shrink_database(self.database)
            self.evaluator.close()
            self._unlock()

    def _listening(self) -> bool:
        try:
            for place in self.places:
                socket.create_connection((place.host, place.port), 1).close()
            return True
        except OSError:
            return False

    def _let_clients_hear(self) -> None:
        time.sleep(3)  # the gateway looks every second, and tells them that the session is done
