"""Tests requests to gateways and supernodes: how long the ServerApp waits, and which replies it accepts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="make test-federate has what this needs")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.supercore.task_identity import TaskIdentity
from helpers.fake_session import make_session

from glgpt.errors import ArgumentError
from glgpt.federation import exchange as exchange_module
from glgpt.federation.aggregation.updates import KEY
from glgpt.federation.exchange import REQUEST_TIMEOUT_S, Supernodes, exchange, from_supernode, name_of
from glgpt.federation.flower.error_codes import OFFLINE
from glgpt.federation.rules import NormLimits
from glgpt.federation.serve import Terms, begin
from glgpt.federation.server_app import Nodes, strategy_of
from glgpt.training.events import TrainingCallbacks

GATEWAY, NODE = 1, 99
PARAMETERS = np.zeros(4, np.float32)
FAILED = 2  # Flower's error code for a ClientApp that raised an exception


def question(node: int) -> Any:
    return SimpleNamespace(metadata=SimpleNamespace(dst_node_id=node))


class Grid:
    """Replaces Flower's grid.

    `answer(node, seconds since its message)` returns True for a reply, None or False for no reply, or an error code.
    """

    def __init__(self, answer: Callable[[int, float], Any], clock: Callable[[], float]) -> None:
        self.answer, self.clock = answer, clock
        self.sent: list[tuple[int, float]] = []

    def push_messages(self, messages: list[Any]) -> list[str]:
        self.sent += [(m.metadata.dst_node_id, self.clock()) for m in messages]
        return [str(number) for number in range(len(self.sent) - len(messages), len(self.sent))]

    def pull_messages(self, names: list[str]) -> list[Any]:
        found = []
        for name in names:
            node, at = self.sent[int(name)]
            answer = self.answer(node, self.clock() - at)
            if answer is not None and answer is not False:
                error = SimpleNamespace(code=answer, reason="why")
                replied = SimpleNamespace(reply_to_message_id=name)
                found.append(SimpleNamespace(metadata=replied, has_error=lambda a=answer: a is not True, error=error))
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replaces time with a clock that only `sleep` advances."""
    now = SimpleNamespace(at=1000.0)

    def sleep(seconds: float) -> None:
        now.at += seconds
        assert now.at < 10_000, "the round does not end"

    monkeypatch.setattr(exchange_module, "time", SimpleNamespace(monotonic=lambda: now.at, sleep=sleep))
    return now


def test_a_gateway_that_lost_its_message_is_asked_again(clock: SimpleNamespace) -> None:
    """Fails if the request is not sent again after an outage, or if the interval between requests does not double."""
    grid = Grid(lambda _, since: clock.at > 1030 and since > 2, lambda: clock.at)
    found = exchange(grid, lambda: [question(GATEWAY)] if not 1005 < clock.at < 1025 else [])
    times = [at - 1000 for _, at in grid.sent]
    assert [q.metadata.dst_node_id for q, _ in found] == [GATEWAY]
    assert times[0] == 0 and REQUEST_TIMEOUT_S < times[1] - times[0] < 30 and len(times) < 4 and clock.at < 1035
    slow = Grid(lambda _, since: since > 100, lambda: clock.at)
    began = clock.at
    exchange(slow, lambda: [question(GATEWAY)])
    assert [round(at - began) for _, at in slow.sent] == [0, 8, 24, 56] and clock.at < began + 105


def test_a_gateway_that_says_it_was_away_is_asked_again(clock: SimpleNamespace) -> None:
    answers = iter([OFFLINE[0]])
    grid = Grid(lambda _, since: since > 1 and next(answers, True), lambda: clock.at)
    assert len(exchange(grid, lambda: [question(GATEWAY)])) == 1 and len(grid.sent) == 2


def test_a_supernode_has_its_time_and_no_more() -> None:
    """Fails if a supernode that hangs during its reply delays other nodes, or gets work before the reply ends."""
    hangs = threading.Event()

    def answer(node: int, _: float) -> Any:
        if node == NODE:
            hangs.wait(60)
        return {3: OFFLINE[2], 4: FAILED}.get(node, True)

    nodes = Supernodes(Grid(answer, time.monotonic))
    began = time.monotonic()
    nodes.ask([question(node) for node in (2, 3, 4, NODE)])
    found = nodes.answers(began + 2)
    assert 2 <= time.monotonic() - began < 4
    assert sorted(q.metadata.dst_node_id for q, _ in found) == [2, 4]
    assert nodes.free([2, 3, 4, NODE]) == [2, 3, 4]
    hangs.set()
    nodes.answers(began + 30)
    assert len(found) == 2  # the late reply has no effect
    assert nodes.free([2, NODE]) == [2, NODE]
    nodes.ask([question(2)])
    assert [q.metadata.dst_node_id for q, _ in nodes.answers(time.monotonic() + 30)] == [2]


def answered(session: Any, **changes: Any) -> Any:
    """Returns the result of `from_supernode` for a valid reply with these changes."""
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    asked = Message(RecordDict({"config": ConfigRecord({"round": 1})}), dst_node_id=NODE, message_type="train")
    asked.metadata.__dict__["_message_id"] = "1"
    metrics: dict[str, Any] = {"tokens": [8.0], "loss": [2.0], "steps": 1, "seconds": 1.0, "clients": 1}
    rows = changes.pop("rows", np.ones((1, 4), np.float32))
    given = {name: value for name, value in (metrics | changes).items() if value is not None}
    arrays = ArrayRecord({"updates": Array(rows)})
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord(given)})
    return from_supernode((asked, Message(content, reply_to=asked)), PARAMETERS, session, NormLimits(1.0))


def test_a_supernode_counts_as_one_device() -> None:
    session = make_session()
    message, line = answered(session)
    assert line["clients"] == 1 and line["tokens"] == 8 and line["site"] == name_of(NODE) != f"supernode {NODE}"
    assert message.content.metric_records["metrics"]["num-examples"] == 8
    assert np.array_equal(message.content.array_records["arrays"][KEY].numpy(), np.ones(4))
    strategy = strategy_of(make_session(strategy="fedavg"))
    list(strategy.configure_train(1, ArrayRecord({KEY: Array(PARAMETERS)}), ConfigRecord({}), Nodes([NODE])))
    after, _ = strategy.aggregate_train(1, [message])
    assert after is not None and np.array_equal(after[KEY].numpy(), np.ones(4))


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": [float("nan")]}, {"loss": [1.0, 2.0]}, {"seconds": float("inf")}, {"tokens": [-32.0]},
        {"tokens": [0.0]}, {"tokens": [1e9]}, {"tokens": [float("nan")]}, {"steps": 0}, {"steps": 10**9},
        {"steps": None}, {"rows": np.ones((3, 4), np.float32)}, {"rows": np.ones((1, 5), np.float32)},
        {"rows": np.full((1, 4), np.nan, np.float32)}, {"rows": np.array([["a"] * 4])},
        {"rows": np.zeros((), np.float32)}, {"rows": np.full((1, 4), 1e30, np.float32)}, {"loss": [1e308]},
    ],
    ids=str,
)  # fmt: skip
def test_what_a_supernode_must_not_say_is_left_out(changes: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flwr"):
        assert answered(make_session(), **changes) is None
    assert name_of(NODE) in caplog.text


def test_a_supernode_that_failed_says_why(caplog: pytest.LogCaptureFixture) -> None:
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    asked = Message(RecordDict(), dst_node_id=NODE, message_type="train")
    asked.metadata.__dict__["_message_id"] = "1"
    reply = Message(Error(FAILED, "this node names no text"), reply_to=asked)
    with caplog.at_level(logging.WARNING, "flwr"):
        assert from_supernode((asked, reply), PARAMETERS, make_session(), NormLimits(1.0)) is None
    assert "names no text" in caplog.text


def test_an_unlisted_strategy_trains_nothing(tmp_path: Path) -> None:
    """Regression: for an unknown strategy, the ServerApp used DiLoCo, and `begin` made a folder before it failed."""
    with pytest.raises(ArgumentError, match="unknown strategy 'fedprox'; expected diloco, "):
        strategy_of(make_session().model_copy(update={"strategy": "fedprox"}))
    with pytest.raises(ArgumentError, match="unknown strategy 'fedprox'; expected diloco, "):
        begin([], str(tmp_path / "run"), Terms(strategy="fedprox"), "nano", None, {}, TrainingCallbacks())
    assert not (tmp_path / "run").exists()
