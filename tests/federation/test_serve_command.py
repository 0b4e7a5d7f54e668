"""Tests `glgpt federate serve`: what it refuses, the processes that a killed `serve` leaves, --rollback, evaluation."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="make test-federate has what this needs")

from helpers.command_line import Capture, refused
from helpers.fake_session import Clock, Host, make_files

from glgpt.errors import ArgumentError, FileError, GlgptError
from glgpt.federation import serve as serve_module
from glgpt.federation.flower import processes
from glgpt.federation.operation.rollback import roll_back
from glgpt.federation.serve import PROCESSES, SUPERLINK, Operation, Place, Places, Supervisor, end_leftovers, places
from glgpt.federation.session import CHECKPOINT, ENDED, UNDONE, Checkpoint, Files
from glgpt.federation.session_evaluator import SessionEvaluator
from glgpt.system.files import write_json
from glgpt.system.locks import lock_folder
from glgpt.training.run_folder import METRICS, RECORD, STATE

AGREED = ("--rounds", "5", "--local-steps", "4", "--quorum", "2", "--grace", "4", "--outer-lr", "0.7")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    files = make_files(tmp_path / "run", round_seconds=120.0, outer_momentum=0.9)
    write_json(files.run / RECORD, {"preset": "nano", "files": []})
    return files.run


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--url", "notanurl"), "--url notanurl is not a web address"),
        (("--url", "https://"), "is not a web address"),
        (("--url", "https://example.org:99999/"), "is not a web address"),
        (("--tls-cert", "nowhere.pem", "--tls-key", "nowhere.key"), "--tls-cert nowhere.pem: no such file"),
        (("--tls-cert", __file__, "--tls-key", __file__), "are not a certificate and its key"),
        (("--rounds", "8"), "holds a session with --rounds 5; use a new --out for 8"),
        (("--quorum", "7"), "holds a session with --quorum 2; use a new --out for 7"),
        (("--strategy", "fedavg"), "holds a session with --strategy diloco; use a new --out for fedavg"),
        (("--preset", "tiny"), "holds a session with --preset nano; use a new --out for tiny"),
        (("--batch", "9"), "holds a session with --batch 2; use a new --out for 9"),
        (("--context", "900"), "use a new --out for 900"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    run: Path, capsys: Capture, more: tuple[str, ...], why: str
) -> None:
    assert why in refused(capsys, "federate", "serve", "--out", str(run), "--no-page", *more)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no PYTHONSAFEPATH")
def test_processes_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    """Fails if a module next to a downloaded text runs during training on the text."""
    (tmp_path / "json.py").write_text("raise SystemExit('imported')")
    for command in (["-c", "import json"], ["-m", "glgpt.federation.gateway", "--help"]):
        environment = processes.environment(tmp_path / "home")
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--quorum", "300"), "--quorum 300 is above the session's number of seats, 256"),
        (("--quorum", "2", "--shards", "1"), "--quorum 2 is above the session's number of seats, 1"),
        (("--quorum", "200"), "seats, 181: a session with 181 shards has at most 181"),
        (("--init", "weights", "--preset", "tiny"), "preset and init cannot be combined"),
    ],
)
def test_a_session_that_cannot_train_is_not_begun(
    tmp_path: Path, capsys: Capture, more: tuple[str, ...], why: str
) -> None:
    """Regression: a quorum above the number of seats was accepted, so that no round could end."""
    (tmp_path / "text").write_text("0123456789" * 21)
    small = ("--tokenizer", "bytes", "--context", "8", "--device", "software", "--port", "0")
    serve = ("federate", "serve", str(tmp_path / "text"), "--out", str(tmp_path / "new"), "--no-page")
    assert why in refused(capsys, *serve, *small, *more)
    assert not (tmp_path / "new").exists()


def test_an_ended_session_says_so(run: Path, capsys: Capture) -> None:
    (run / "federation" / ENDED).touch()
    said = refused(capsys, "federate", "serve", "--out", str(run), *AGREED)
    assert "was ended by its host after 0 of 5 rounds" in said


@pytest.mark.parametrize("ended", [False, True])
def test_the_gateways_tell_devices_that_the_host_ended_the_session(
    run: Path, monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """Regression: `serve` ended the gateways at once, and the devices tried to reconnect."""
    told: list[bool] = []
    monkeypatch.setattr(Supervisor, "_ensure", lambda _: None)
    monkeypatch.setattr(Supervisor, "_watch_run", lambda _: None)
    monkeypatch.setattr(Supervisor, "_let_clients_hear", lambda _: told.append(True))
    if ended:
        (run / "federation" / ENDED).touch()
    supervisor = Supervisor(Files(run), Place(port=0), (), "software", lambda _: None)
    assert supervisor.run(lambda _: None, lambda: True) is False
    assert told == [True] * ended


def test_what_a_killed_serve_left_is_ended_though_its_leader_is_gone(run: Path, tmp_path: Path) -> None:
    """Fails if a process survives because its group leader has ended, or if another session's process is ended."""
    files = make_files(tmp_path / "other")
    wait = "import time; print(flush=True); time.sleep(60)"
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{wait}', sys.argv[1]])"
    leaders = []
    for folder in (run, files.run):
        command = [sys.executable, "-c", child, str(folder)]
        with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as leader:
            assert leader.stdout and leader.stdout.readline()  # the child runs: only now /proc has its command line
        leaders.append(leader.pid)
    (files.folder / PROCESSES).write_text("\n".join(map(str, leaders)) + "\n")

    def alive(group: int) -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        return True

    try:
        assert all(map(alive, leaders))
        end_leftovers(files)
        end = time.monotonic() + 10
        while alive(leaders[1]) and time.monotonic() < end:
            time.sleep(0.05)
        assert [alive(leader) for leader in leaders] == [True, False]
    finally:
        for leader in leaders:
            if alive(leader):
                os.killpg(leader, 9)


def test_a_port_that_a_killed_serve_left_in_use_is_free_again(run: Path) -> None:
    """Regression: a session with --metrics could not be continued after its `serve` was killed."""
    listens = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)"
    command = [sys.executable, "-c", f"{listens}; time.sleep(60)", str(run)]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as left:
        assert left.stdout
        port = int(left.stdout.readline())
        files = Files(run)
        (files.folder / PROCESSES).write_text(f"{left.pid}\n")
        supervisor = Supervisor(
            files, Place(port=0), (), "software", lambda _: None, operation=Operation(Place(port=port))
        )
    assert supervisor.links()[0]["metrics"] == f"http://127.0.0.1:{port}/metrics"
    supervisor._unlock()


def test_two_servers_of_a_session_have_two_ports(tmp_path: Path, capsys: Capture) -> None:
    """Regression: a gateway whose metrics had the port of another server of the session ended after each start."""
    (tmp_path / "text").write_text("To be, or not to be. " * 200)
    first, second = (Places.find(Place(port=0), (), 1, 0, None).gateways[0] for _ in range(2))
    serve = ("federate", "serve", str(tmp_path / "text"), "--out", str(tmp_path / "new"), "--port", str(first.port))
    for more in (("--fleet-port", str(first.port)), ("--metrics", str(first.port))):
        assert f"{more[0]} {first.port} is another server's port; choose another" in refused(capsys, *serve, *more)
    more = ("--fleet-port", str(second.port), "--metrics", str(second.port))
    assert f"--metrics {second.port} is another server's port; choose another" in refused(capsys, *serve, *more)
    with socket.create_server(("127.0.0.1", 0)) as other:
        more = ("--metrics", str(other.getsockname()[1]))
        assert "cannot be used: Address already in use; change it with --metrics" in refused(capsys, *serve, *more)
    assert not (tmp_path / "new").exists()


def test_a_free_port_is_never_another_servers_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a port chosen as free could be that of --port, and the error named an option that was not given."""
    (given,) = places(Place(port=0), (), 1)
    ports = iter([given.port, given.port + 1])
    bind = serve_module._bound_port
    monkeypatch.setattr(serve_module, "_bound_port", lambda *args: bind(*args) if args[2] else next(ports))
    found = Places.find(given, (), 1, 0, None)
    assert (found.gateways[0].port, found.superlink.port) == (given.port, given.port + 1)


@pytest.mark.parametrize(("host", "shown"), [("", "an empty host"), ("\udcff", "udcff"), ("a" * 70, "a" * 70)])
def test_a_host_that_is_not_an_address_is_refused(host: str, shown: str) -> None:
    """Regression: an empty host made every gateway end, and bytes that are not UTF-8 caused a traceback."""
    with pytest.raises(ArgumentError, match=f"{shown}:0 cannot be used: .*; change it with --host and --port"):
        places(Place(host=host, port=0), (), 1)


@pytest.mark.parametrize("damaged", [False, True])
def test_rollback_undoes_rounds(run: Path, capsys: Capture, damaged: bool) -> None:
    """Fails if weights, lines of rounds.jsonl, metrics or the open round stay after a rollback.

    Regression: a session whose last checkpoint was damaged could not be rolled back, and each command failed with a
    traceback.
    """
    host = Host(Files(run), Clock())
    files, before = host.files, host.before
    settings = asdict(files.session().settings)
    record = {
        "preset": "nano",
        "files": [],
        "vocab_size": 256,
        "data": "x",
        "tokenizer": "0" * 64,
        "settings": settings,
    }
    write_json(run / RECORD, record)
    (run / STATE).touch()
    (run / METRICS).write_text("".join(json.dumps({"step": step, "loss": 2.0}) + "\n" for step in (4, 8, 12)))
    for number in (1, 2, 3):
        files.note({"round": number, "clients": 1, "tokens": 8, "loss": 2.0, "devices": [], "streamed": False})
        files.note({"round": number, "step": 4 * number, "validation_loss": 2.0})
        files.save(Checkpoint(number, before + np.float32(number), {}))
    member = host.join().member
    host.begin(4)
    host.send(member)
    (files.folder / SUPERLINK).touch()
    serve = ("federate", "serve", "--out", str(run), "--no-page", *AGREED)
    if damaged:
        with (files.folder / CHECKPOINT).open("r+b") as file:
            file.truncate(100)
        for command in (serve, ("federate", "status", str(run))):
            said = refused(capsys, *command)
            assert "is damaged: " in said and "return to the previous round with" in said
    assert "has checkpoints for --rollback 1 or 2" in refused(capsys, *serve, "--rollback", "3")
    unlock = lock_folder(files.folder)
    assert unlock is not None
    assert "is being served" in refused(capsys, *serve, "--rollback", "2")
    unlock()
    assert roll_back(files, 2) == 1
    held = files.checkpoint()
    assert held.round == 1 and np.array_equal(held.parameters, before + 1) and files.undone_rounds() == 2
    assert [sorted(line) for line in files.notes()] == [["clients", "devices", "loss", "round", "streamed", "tokens"]]
    assert (run / METRICS).read_text() == ""  # removed, since the round will be evaluated again
    assert Host(files, Clock()).rounds.open is None and not (files.folder / SUPERLINK).exists()
    assert Host(files, Clock()).rounds.members.keys() == {0}
    assert "has no checkpoint of an earlier round yet" in refused(capsys, *serve, "--rollback", "1")


def test_a_rollback_that_fails_undoes_nothing(run: Path) -> None:
    """Regression: after the error, the rounds counted as undone, and lines and SuperLink's database were deleted."""
    files = Files(run)
    for number in (1, 2):
        files.note({"round": number, "clients": 1, "tokens": 8, "loss": 2.0, "devices": []})
        files.save(Checkpoint(number, files.checkpoint().parameters, {}))
    (files.folder / SUPERLINK).touch()
    kept = files.kept(1).read_bytes()
    for path, damaged, why in (
        (files.kept(1), kept[:-4], r"checkpoint-1\.safetensors is damaged"),
        (
            files.folder / UNDONE,
            b"two",
            "undone is damaged: 'two' is not a number of rounds; write the number of rounds",
        ),
    ):
        path.write_bytes(damaged)
        with pytest.raises(FileError, match=why):
            roll_back(files, 1)
        assert files.round_of() == len(files.notes()) == 2 and (files.folder / SUPERLINK).exists()
        assert path.name == UNDONE or files.undone_rounds() == 0
        files.kept(1).write_bytes(kept)
    (files.folder / UNDONE).write_bytes(b"2\n")  # as `echo 2 >` does
    files.count_undone(1)
    assert files.undone_rounds() == 3


def test_a_model_that_cannot_be_evaluated_ends_no_session(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: `serve` ended with an error and could not be started again."""
    files = Files(run)

    trainer = SimpleNamespace(set_parameters=lambda _: None, steps_done=0)

    class Loop:
        def keep(self, step: int, _: float | None) -> dict[str, Any]:
            if step == 4:
                raise GlgptError("the model's logits are not finite")
            return {"step": step, "lr": 1e-3, "validation_loss": float("nan")}

    monkeypatch.setattr(SessionEvaluator, "_opened", lambda _: (trainer, Loop()))
    evaluator = SessionEvaluator(files, "software")
    for number in (1, 2):
        files.note({"round": number, "clients": 1, "tokens": 8, "loss": 2.0, "devices": []})
        files.save(Checkpoint(number, files.checkpoint().parameters, {}))
        (told,) = evaluator.catch_up(number)
        assert told.get("problem") == ("the model's logits are not finite" if number == 1 else None)
        assert "validation_loss" not in told
    assert not list(SessionEvaluator(files, "software").catch_up(2))


@pytest.mark.parametrize(
    ("place", "origin"),
    [
        (Place(url="https://Example.org:443/team/"), "https://example.org"),
        (Place(url="http://example.org:80"), "http://example.org"),
        (Place(url="https://example.org:8443/a/b"), "https://example.org:8443"),
        (Place(url="https://[2001:DB8::1]/x/"), "https://[2001:db8::1]"),
        (Place(host="127.0.0.1", port=8043), "http://127.0.0.1:8043"),
    ],
)
def test_the_origin_of_a_place_has_no_path(place: Place, origin: str) -> None:
    """Regression: browsers behind a proxy with a path prefix received 403."""
    assert place.origin() == origin
