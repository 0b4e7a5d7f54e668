"""Tests whole sessions on Flower in separate processes: with one client, and with processes killed at any moment."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="make test-federate has what this needs")

from certificate import certificate
from helpers.federation_commands import TIMEOUT_S, Command, running
from kills import PROCESSES, SMALL, session
from safetensors.numpy import load_file

from glgpt.federation.flower.processes import QUIET
from glgpt.federation.serve import Place, places
from glgpt.system.files import data_path

PLAY = data_path("tests/data/shakespeare-validation.txt")


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
    """Caches the result of a probe, even if the machine is busy, so that all commands use the same kernel."""
    from glgpt.models.families.gpt2 import GPT2Config
    from glgpt.training.trainer import Trainer
    from glgpt.tuning import kernel_selection

    measure = kernel_selection.probe
    monkeypatch.setattr(kernel_selection, "probe", lambda *args: (measure(*args)[0], True))
    with Trainer(GPT2Config(vocab_size=8, n_positions=8, n_embd=8, n_layer=1, n_head=1), device="software"):
        assert kernel_selection.cache_file().is_file()


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
    second = commands("serve", "--out", str(tmp_path / "run"), "--port", "0")  # must not affect `host`
    assert second.process.wait(TIMEOUT_S) == 2
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


def test_a_session_over_tls(tmp_path, play, commands, monkeypatch):
    """Fails if links do not use https, or if a desktop does not report that it distrusts the certificate."""
    cert, key = certificate(tmp_path)
    terms = ("--rounds", "1", "--local-steps", "1", "--tls-cert", str(cert), "--tls-key", str(key))
    host = serve(commands, tmp_path / "run", str(play), *SMALL, *terms)
    link = host.events("ready")[0]["desktop"]
    assert link.startswith("https://127.0.0.1:")
    stranger = commands("join", link, "--device", "software")
    assert stranger.process.wait(TIMEOUT_S) == 2
    assert "certificate verify failed" in "".join(stranger.errors)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    friend = commands("join", link, "--device", "software")
    host.wait(lambda: host.events("done"))
    assert friend.process.wait(60) == 0
    assert friend.events("left")[0]["rounds"] == 1


@pytest.mark.soak
@pytest.mark.parametrize("quorum", [1, 2])
def test_two_gateways_train_one_model(tmp_path, play, commands, quorum):
    """Fails if a gateway without devices delays a round that already has enough updates for the quorum."""
    terms = ("--rounds", "100", "--local-steps", "1", "--gateways", "2", "--quorum", str(quorum), "--grace", "1")
    host = serve(commands, tmp_path / "run", str(play), *SMALL, *terms)
    (ready,) = host.events("ready")
    first, second = ready["gateways"]
    assert first["desktop"] == ready["desktop"] != second["desktop"]
    here = commands("join", first["desktop"], "--name", "here", "--device", "software")
    here.wait(lambda: here.events("accepted"))
    if quorum == 1:
        host.wait(lambda: host.events("round"))
        assert host.events("round")[0]["clients"] == 1
    commands("join", second["desktop"], "--name", "there", "--device", "software")
    (both, *_) = host.wait(lambda: [line for line in host.events("round") if line["clients"] == 2])
    assert sorted(device["name"] for device in both["devices"]) == ["here", "there"]
    assert all(line["clients"] >= quorum for line in host.events("round"))
    told = [sys.executable, "-m", "glgpt", "federate", "status", str(tmp_path / "run"), "--json"]
    status = json.loads(subprocess.run(told, check=True, capture_output=True).stdout)
    assert sorted(m["name"] for m in status["members"]) == ["here", "there"]
    assert len(status["gateways"]) == 2


@pytest.mark.slow
@pytest.mark.kills
@pytest.mark.parametrize("what", PROCESSES)
def test_a_killed_process_ends_no_session(tmp_path, commands, what):
    assert session(tmp_path, commands, what, 1, random.Random(0))["wrong"] == []


def test_a_strategy_of_flowers_sees_every_client(tmp_path):
    """Splits a gateway's reply of five updates, two of them invalid, into a reply per valid update for a strategy."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.supercore.task_identity import TaskIdentity
    from helpers.fake_session import make_session

    from glgpt.federation.aggregation.strategies import STRATEGIES
    from glgpt.federation.aggregation.updates import arrays_of
    from glgpt.federation.server_app import Limits, expanded, memory_of, remember, strategy_of

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as in a ServerApp's process
    before = np.zeros(4, np.float32)
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    asked.metadata.__dict__["_message_id"] = "1"
    rows = np.float32([[1, 1, 1, 1], [3, 3, 3, 3], [2, 2, 2, 2], [np.nan] * 4, [9, 9, 9, 9]])
    metrics = MetricRecord({"tokens": [10.0, 10.0, 10.0, 10.0, 1e9], "loss": [1.0, 2.0, 3.0, 1.0, 1.0]})
    content = RecordDict({"arrays": ArrayRecord({"updates": Array(rows)}), "metrics": metrics})
    replies = expanded(Message(content, reply_to=asked), asked, before, Limits(1000, 10))
    assert len(replies) == 3
    assert expanded(Message(RecordDict(), reply_to=asked), asked, before, Limits(1000, 10)) == []

    class Grid:
        def get_node_ids(self):
            return [1]

    for name in STRATEGIES:
        session = make_session(strategy=name, outer_lr=1.0, outer_momentum=0.0)
        strategy = strategy_of(session)
        assert list(strategy.configure_train(1, arrays_of(before), ConfigRecord({"round": 1}), Grid()))
        arrays, _ = strategy.aggregate_train(
            1, expanded(Message(content, reply_to=asked), asked, before, Limits(1000, 10))
        )
        after = arrays["parameters"].numpy()
        assert np.isfinite(after).all() and (after > 0).all(), name
        if name != "fedadam":
            assert np.allclose(after, 2), name
        again = strategy_of(session)
        remember(again, memory_of(strategy))
        assert memory_of(again).keys() == memory_of(strategy).keys()
        assert bool(memory_of(strategy)) == (name == "fedadam"), name


def test_a_round_whose_mean_is_not_finite_leaves_the_weights(tmp_path):
    import numpy as np
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity
    from helpers.fake_session import make_files

    from glgpt.federation.aggregation.updates import arrays_of, client_reply
    from glgpt.federation.server_app import Nodes, combined, memory_of, strategy_of

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    asked.metadata.__dict__["_message_id"] = "1"
    files = make_files(tmp_path / "run", outer_lr=1.0, outer_momentum=0.9)
    before, strategy = files.checkpoint().parameters, strategy_of(files.session())

    def round_of(number, row):
        list(strategy.configure_train(number, arrays_of(before), ConfigRecord({}), Nodes([1])))
        return combined(strategy, number, before, [client_reply(asked, row, 8.0, 2.0)], files)

    good = round_of(1, before + 1)
    velocity = memory_of(strategy)["velocity"]
    assert np.isfinite(good).all() and not np.array_equal(good, before)
    with np.errstate(over="ignore"):
        assert np.array_equal(round_of(2, np.full_like(before, 3e38)), before)  # the outer step overflows
    held = files.checkpoint()
    assert held.round == 2 and np.array_equal(held.parameters, before)
    assert np.array_equal(held.memory["velocity"], velocity) and memory_of(strategy)["velocity"] is velocity


def test_an_answer_that_was_half_sent_is_completed(tmp_path):
    """Regression: a killed gateway sent a part of its reply, and the ServerApp waited three minutes for the rest."""
    import numpy as np
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.proto.message_pb2 import PushObjectResponse
    from flwr.supercore.task_identity import TaskIdentity

    from glgpt.federation.flower.site import Site, message_to_proto

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    asked = Message(RecordDict({"config": ConfigRecord({"round": 1})}), dst_node_id=1, message_type="train")
    asked.metadata.__dict__["_message_id"] = "1"
    task = message_to_proto(asked).SerializeToString()

    class Client:
        """Answers as SuperLink does: to the first attempt if `objects`, else to one after it accepted the reply."""

        def __init__(self, objects: bool) -> None:
            self.objects, self.messages, self.pushed = objects, [], []

        def PushMessages(self, request):  # noqa: N802
            self.messages.append(request.messages_list[0].metadata.message_id)
            ids = [node.object_id for node in walk(request.message_object_trees[0])]
            return SimpleNamespace(objects_to_push=ids if self.objects else [], session_id="first")

        def PushObject(self, request):  # noqa: N802
            self.pushed.append((request.object_id, request.session_id))
            return PushObjectResponse(stored=self.objects or len(self.pushed) % 2 == 0)  # it has half already

    def walk(tree):
        yield tree
        for child in tree.children:
            yield from walk(child)

    clients = Client(True), Client(False)
    for client in clients:
        site = Site.__new__(Site)
        site._client, site._node = client, None
        site.answer(task, {"updates": np.ones((2, 3), np.float32)}, {"tokens": [1.0, 2.0], "clients": 2})
        time.sleep(0.01)
    first, again = clients
    assert first.messages == again.messages
    assert {one for one, _ in first.pushed} == {one for one, _ in again.pushed}
    assert {session for _, session in first.pushed} == {"first"}
    assert {session for _, session in again.pushed} == {""}


def test_noise_is_what_was_asked_for(tmp_path):
    """Tests Flower's differential privacy on a gateway's updates: the amount of noise, and an unweighted mean."""
    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.supercore.task_identity import TaskIdentity
    from helpers.fake_session import make_session

    from glgpt.federation.aggregation.updates import arrays_of
    from glgpt.federation.server_app import Limits, expanded, strategy_of

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    before = np.zeros(40_000, np.float32)
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    asked.metadata.__dict__["_message_id"] = "1"
    rows = np.stack([np.full(len(before), value, np.float32) for value in (0.001, 0.003)])
    metrics = MetricRecord({"tokens": [10.0, 1000.0], "loss": [1.0, 2.0]})
    content = RecordDict({"arrays": ArrayRecord({"updates": Array(rows)}), "metrics": metrics})

    class Grid:
        def get_node_ids(self):
            return [1]

    strategy = strategy_of(make_session(strategy="fedavg", dp_noise=0.5, dp_clip=2.0, quorum=2))
    list(strategy.configure_train(1, arrays_of(before), ConfigRecord({"round": 1}), Grid()))
    arrays, _ = strategy.aggregate_train(1, expanded(Message(content, reply_to=asked), asked, before, Limits(1e4, 10)))
    after = arrays["parameters"].numpy()
    assert np.std(after) == pytest.approx(0.5 * 2.0 / 2, rel=0.03)
    assert np.mean(after) == pytest.approx(0.002, abs=5 * 0.5 / 200)


def test_superlinks_database_returns_the_space_of_its_rounds(tmp_path, monkeypatch):
    """Regression: the database grew by 182 MB per round of a model of 11 M parameters, and never shrank."""
    from glgpt.federation.flower import processes

    database = tmp_path / "superlink.sqlite"
    processes.shrink_database(database)  # the file does not exist before SuperLink's first start
    superlink = sqlite3.connect(database, isolation_level=None)
    superlink.execute("PRAGMA journal_mode = WAL")
    superlink.execute("CREATE TABLE objects (content BLOB)")
    superlink.execute("CREATE TABLE node (id INTEGER)")
    superlink.execute("INSERT INTO node VALUES (7)")

    def size():
        return sum(path.stat().st_size for path in tmp_path.iterdir())

    def take_round():
        superlink.execute("INSERT INTO objects VALUES (zeroblob(4000000))")
        superlink.execute("DELETE FROM objects")

    take_round()
    processes.trim_database(database)
    assert size() > 4_000_000  # the free space is too small to be trimmed
    monkeypatch.setattr(processes, "MAX_FREE_BYTES", 1 << 20)
    for _ in range(3):
        take_round()
        processes.trim_database(database)
        assert size() < 100_000
    superlink.execute("INSERT INTO objects VALUES (zeroblob(4000000))")  # left by a killed run
    superlink.close()
    processes.shrink_database(database)
    assert size() < 100_000
    assert sqlite3.connect(database).execute("SELECT id FROM node").fetchall() == [(7,)]
    database.write_bytes(b"damaged" * 1000)
    processes.shrink_database(database)  # leaves the error about a damaged database to SuperLink


def supernode(folder: Path, superlink: int, config: str) -> subprocess.Popen[bytes]:
    """Starts Flower's SuperNode with this configuration."""
    folder.mkdir()
    (port,) = (place.port for place in places(Place(port=0), (), 1))
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    command = [sys.executable, "-c", "from flwr.supernode.cli import flower_supernode; flower_supernode()"]
    command += ["--insecure", "--superlink", f"127.0.0.1:{superlink}", "--port", str(port), "--node-config", config]
    with (folder / "log").open("wb") as log:
        environment = os.environ | QUIET | {"FLWR_HOME": str(folder), "PATH": path}
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


@pytest.mark.soak
def test_a_supernode_of_ones_own_trains_beside_the_gateway(tmp_path, play, commands):
    """Fails if the supernode does not train on its own text, or a supernode without a text delays other nodes."""
    (port,) = (place.port for place in places(Place(port=0), (), 1))
    terms = ("--rounds", "1000", "--local-steps", "1", "--grace", "1", "--fleet-port", str(port))
    host = serve(commands, tmp_path / "run", str(play), *SMALL, *terms)
    commands("join", host.events("ready")[0]["desktop"], "--name", "here", "--device", "software")
    mine = tmp_path / "mine.txt"
    mine.write_bytes(PLAY.read_bytes()[20_000:40_000])
    configs = (f'text="{mine}" device="software"', 'device="software"')
    nodes = [supernode(tmp_path / f"node {i}", port, config) for i, config in enumerate(configs)]

    def together() -> list[Any]:
        for i, node in enumerate(nodes):
            assert node.poll() is None, (tmp_path / f"node {i}" / "log").read_text()
        return [line for line in host.events("round") if line["clients"] == 2]

    def refused() -> bool:
        return "names no text" in (tmp_path / "run/federation/logs/superexec.log").read_text()

    try:
        (both, *_) = host.wait(together)
        host.wait(refused)  # the node without a text may start seconds later
    finally:
        for node in nodes:
            node.terminate()
            node.wait(60)
    here, there = sorted(both["devices"], key=lambda device: device["name"])
    assert here["name"] == "here" and there["name"].startswith("supernode ") and there["tokens"] == here["tokens"]
    after = host.events("round")[-1]["round"] + 1
    host.wait(lambda: host.events("round")[-1]["round"] > after)  # the nodes have ended, and the session continues
