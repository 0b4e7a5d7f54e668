"""`glgpt federate serve`: what it refuses before anything starts, and what a killed one leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="make test-federate has what this needs")

from command_line import Capture, refused
from fake_session import make_files

from glgpt.federation.serve import PROCESSES, end_leftovers
from glgpt.federation.session import ENDED
from glgpt.system.files import write_json
from glgpt.training.run_folder import RECORD

AGREED = ("--rounds", "5", "--local-steps", "4", "--quorum", "2", "--grace", "4", "--outer-lr", "0.7")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    files = make_files(tmp_path / "run", round_seconds=120.0, outer_momentum=0.9)
    write_json(files.run / RECORD, {"preset": "nano", "files": []})
    return files.run


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (("--url", "notanurl"), "--url notanurl is no address"),
        (("--url", "https://"), "is no address"),
        (("--tls-cert", "nowhere.pem", "--tls-key", "nowhere.key"), "--tls-cert nowhere.pem: there is no such file"),
        (("--tls-cert", __file__, "--tls-key", __file__), "are no certificate and its key"),
        (("--rounds", "8"), "holds a session with --rounds 5; 8 needs a new --out"),
        (("--quorum", "7"), "holds a session with --quorum 2; 7"),
        (("--strategy", "fedavg"), "holds a session with --strategy diloco; fedavg"),
        (("--preset", "tiny"), "holds a session with --preset nano; tiny"),
        (("--batch", "9"), "holds a session with --batch 2; 9"),
        (("--context", "900"), "; 900 needs a new --out"),
    ],
)
def test_what_cannot_be_is_said_before_anything_starts(
    run: Path, capsys: Capture, more: tuple[str, ...], why: str
) -> None:
    assert why in refused(capsys, "federate", "serve", "--out", str(run), "--no-page", *more)


def test_an_ended_session_says_so(run: Path, capsys: Capture) -> None:
    (run / "federation" / ENDED).touch()
    said = refused(capsys, "federate", "serve", "--out", str(run), *AGREED)
    assert "was ended by its host after 0 of 5 rounds" in said


def test_what_a_killed_serve_left_is_ended_though_its_leader_is_gone(run: Path, tmp_path: Path) -> None:
    """As a ServerApp, whose SuperExec has ended itself; and nobody else's process."""
    files = make_files(tmp_path / "other")
    wait = "import sys, time; time.sleep(60)"
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{wait}', sys.argv[1]])"
    leaders = []
    for folder in (run, files.run):
        leader = subprocess.Popen([sys.executable, "-c", child, str(folder)], start_new_session=True)
        leader.wait()
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
