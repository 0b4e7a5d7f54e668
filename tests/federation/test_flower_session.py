"""Whole sessions on Flower, in processes of their own: a federation of one, and processes killed at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="make test-federate has what this needs")

from federation_commands import Command, running
from safetensors.numpy import load_file

from glgpt.system.files import data_path

PLAY = data_path("tests/data/shakespeare-validation.txt")
SMALL = ("--tokenizer", "bytes", "--batch", "2", "--eval-tokens", "512", "--no-page", "--device", "software")


@pytest.fixture
def commands() -> Iterator[Callable[..., Command]]:
    with running() as start:
        yield start


@pytest.fixture
def play(tmp_path: Path) -> Path:
    text = tmp_path / "play.txt"
    text.write_bytes(PLAY.read_bytes()[:20_000])
    return text


def serve(commands: Any, run: Path, *more: str) -> Command:
    host = commands("serve", "--out", str(run), "--port", "0", *more)
    host.wait(lambda: host.events("ready"))
    return host


@pytest.fixture
def one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands choose the same kernel, also where the machine is too busy to remember a probe."""
    from glgpt.models.gpt2.config import GPT2Config
    from glgpt.training.trainer import Trainer
    from glgpt.tuning import choice

    measure = choice.probe
    monkeypatch.setattr(choice, "probe", lambda *args: (measure(*args)[0], True))
    with Trainer(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1), device="software"):
        assert choice.cache_file().is_file()


def test_a_federation_of_one_gives_the_bits_of_glgpt_train(tmp_path, play, commands, one_kernel):
    steps = 6
    options = ["--steps", "6", "--tokenizer", "bytes", "--batch", "2", "--eval-every", "0", "--sample-every", "0"]
    options += ["--seed", "3", "--device", "software", "--warmup", "1"]
    subprocess.run(
        [sys.executable, "-m", "glgpt", "train", str(play), "--out", str(tmp_path / "alone"), *options],
        check=True,
        capture_output=True,
    )
    terms = ("--rounds", "2", "--local-steps", str(steps // 2), "--strategy", "fedavg", "--dtype", "exact")
    host = serve(
        commands,
        tmp_path / "run",
        str(play),
        *SMALL,
        *terms,
        "--shards",
        "1",
        "--seed",
        "3",
        "--grace",
        "0",
        "--warmup",
        "1",
    )
    second = commands("serve", "--out", str(tmp_path / "run"), "--port", "0")  # it leaves the first one's alone
    assert second.process.wait(120) == 2
    assert "is being served by another process" in "".join(second.errors)
    join = commands("join", host.events("ready")[0]["desktop"], "--device", "software")
    host.wait(lambda: host.events("done"))
    assert join.process.wait(60) == 0
    alone = load_file(tmp_path / "alone" / "model.safetensors")
    together = load_file(tmp_path / "run" / "model.safetensors")
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        assert value.tobytes() == together[name].tobytes(), name
    metrics = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics] == [3, 6]


def pid_of(run: Path, what: str) -> int:
    """The process id of a session's process."""
    if what == "serverapp":
        return int((run / "federation" / "serverapp.pid").read_text())
    order = ("superlink", "gateway", "superexec")
    return int((run / "federation" / "processes").read_text().split()[order.index(what)])


def session_with_a_kill(tmp_path: Path, play: Path, commands: Any, what: str, after: float) -> list[dict[str, Any]]:
    """Rounds of a session in which a process is killed some seconds after the first round."""
    run = tmp_path / "run"
    terms = (str(play), *SMALL, "--rounds", "4", "--local-steps", "2", "--quorum", "2", "--grace", "2", "--seed", "1")
    # A client comes back to where it was: the port stays the same over a restart.
    port = str(random.randrange(20000, 30000))
    host = serve(commands, run, *terms, "--port", port)
    link = host.events("ready")[0]["desktop"]
    joined = [commands("join", link, "--name", n, "--device", "software") for n in "ab"]
    host.wait(lambda: host.events("round"))
    time.sleep(after)
    rounds = host.events("round")
    if what == "serve":
        os.kill(host.process.pid, signal.SIGKILL)
        host.process.wait()
        rounds = host.events("round")
        host = serve(commands, run, *terms, "--port", port)  # the same command
    else:
        os.kill(pid_of(run, what), signal.SIGKILL)
    host.wait(lambda: host.events("done"))
    for client in joined:
        assert client.process.wait(60) == 0
        assert client.events("left")[0]["why"] == "all rounds are done"
    notes = [json.loads(line) for line in (run / "federation" / "rounds.jsonl").read_text().splitlines()]
    assert {note["round"] for note in notes} == {1, 2, 3, 4}
    assert all(note["clients"] == 2 for note in notes if "clients" in note)  # no accepted update was lost
    return [*rounds, *host.events("round")]


@pytest.mark.slow
@pytest.mark.kills
@pytest.mark.parametrize("what", ["superlink", "gateway", "serverapp", "superexec", "serve"])
def test_a_killed_process_ends_no_session(tmp_path, play, commands, what):
    after = float(os.environ.get("GLGPT_KILL_AFTER", "0.5"))
    rounds = session_with_a_kill(tmp_path, play, commands, what, after)
    assert rounds[-1]["round"] == 4


def test_a_strategy_of_flowers_sees_every_client(tmp_path):
    """The sites' replies, expanded, through each strategy; one client's is not as agreed."""
    import numpy as np
    from fake_session import make_session
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from glgpt.federation.server_app import _arrays, expanded, memory_of, remember, strategy_of

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as in a ServerApp's process
    before = np.zeros(4, np.float32)
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    asked.metadata.__dict__["_message_id"] = "1"
    rows = np.float32([[1, 1, 1, 1], [3, 3, 3, 3], [2, 2, 2, 2], [np.nan] * 4, [9, 9, 9, 9]])
    metrics = MetricRecord({"tokens": [10.0, 10.0, 10.0, 10.0, 1e9], "loss": [1.0, 2.0, 3.0, 1.0, 1.0]})
    content = RecordDict({"arrays": ArrayRecord({"updates": Array(rows)}), "metrics": metrics})
    replies = expanded(Message(content, reply_to=asked), asked, before, 1000)
    assert len(replies) == 3
    assert expanded(Message(RecordDict(), reply_to=asked), asked, before, 1000) == []

    class Grid:
        def get_node_ids(self):
            return [1]

    for name in ("diloco", "fedavg", "fedadam", "median", "trimmed"):
        session = make_session(strategy=name, outer_lr=1.0, outer_momentum=0.0)
        strategy = strategy_of(session)
        assert list(strategy.configure_train(1, _arrays(before), ConfigRecord({"round": 1}), Grid()))
        arrays, _ = strategy.aggregate_train(1, expanded(Message(content, reply_to=asked), asked, before, 1000))
        after = arrays["parameters"].numpy()
        assert np.isfinite(after).all() and (after > 0).all(), name
        if name != "fedadam":
            assert np.allclose(after, 2), name
        again = strategy_of(session)
        remember(again, memory_of(strategy))
        assert memory_of(again).keys() == memory_of(strategy).keys()
        assert bool(memory_of(strategy)) == (name == "fedadam"), name
