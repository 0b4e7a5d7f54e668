"""Tests a gateway's operation: health, metrics, the operator's options, and logs."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

httpx = pytest.importorskip("httpx", reason="make test-federate has what this needs")
sync = pytest.importorskip("websockets.sync.client", reason="make test-federate has what this needs")

from helpers.command_line import Capture, refused  # noqa: E402
from helpers.federation_peer import Peer  # noqa: E402

from glgpt.federation.operation import metrics  # noqa: E402
from glgpt.federation.operation.logs import log_to_stderr  # noqa: E402
from glgpt.federation.serve import Operation, Place, Places, Supervisor  # noqa: E402
from glgpt.system.metrics import metrics_server  # noqa: E402


def values(address: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in httpx.get(address).text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines if name.startswith("glgpt_")}


def test_health_and_metrics_of_a_gateway(served: Any) -> None:
    host = served(rounds=2, quorum=1)
    metrics.observe(host.gateway)
    health = f"{host.address}health"
    assert httpx.get(health).json() == {"status": "ok"}
    with metrics_server("127.0.0.1", 0) as address:
        before = values(address)
        peer = Peer(host, host.gateway.invitations.create())
        peer.next("welcome")
        round_ = peer.next("round")
        during = values(address)
        assert peer.train(round_, round_["parameters"] + np.float32(0.1))["type"] == "accepted"
        after = values(address)
    assert before["glgpt_federation_members"] == 0 and before["glgpt_federation_rounds"] == 2
    assert during["glgpt_federation_members"] == during["glgpt_federation_sockets"] == 1
    accepted = 'glgpt_federation_updates_total{result="accepted"}'
    assert after[accepted] == before[accepted] + 1
    assert (
        after['glgpt_federation_member_bytes{direction="in"}'] > during['glgpt_federation_member_bytes{direction="in"}']
    )
    host.gateway.failed = True
    assert httpx.get(health).status_code == 503


def test_the_gateways_get_what_the_operator_asked_for(tmp_path: Path) -> None:
    supervisor = Supervisor.__new__(Supervisor)
    supervisor.files = type("F", (), {"run": tmp_path})()  # type: ignore[assignment]
    measured = [Place(port=9000), Place(port=9001)]
    supervisor.places = Places([Place(), Place(port=8044)], Place(port=1), measured)
    supervisor.operation = Operation(measured[0], "debug", "json")
    command = supervisor._gateway_command(1)
    assert command[command.index("--metrics") + 1 :] == [
        "127.0.0.1", "9001", "--log-level", "debug", "--log-format", "json",
    ]  # fmt: skip


def test_an_operators_options_are_checked_first(tmp_path: Path, capsys: Capture) -> None:
    config = tmp_path / "federate.toml"
    config.write_text(f"out = {json.dumps(str(tmp_path / 'run'))}\nrounds = 3\nmetrics = 'nowhere'\n")
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be. " * 200)
    said = refused(capsys, "federate", "serve", str(text), "--config", str(config), "--no-page")
    assert "--metrics 'nowhere' is not [HOST:]PORT" in said and not (tmp_path / "run").exists()


def test_the_gateways_log_is_structured_and_throttled(capsys: Capture) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        log_to_stderr("info", "json")
        for i in range(100):
            logging.getLogger("glgpt.test").info("message %d", i, extra={"fields": {"client": i}})
    finally:
        root.handlers, root.level = before, level
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == 20 and lines[3]["message"] == "message 3" and lines[3]["client"] == 3
