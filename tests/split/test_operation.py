"""Tests a split server's operation: health, metrics and logs."""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from glgpt.cli.operation.log import log_on_stderr
from glgpt.cli.operation.options import operated
from glgpt.errors import ArgumentError, GlgptError
from glgpt.inference.loading import load
from glgpt.system.metrics import metrics_server


def got(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def values(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_health_says_when_a_server_drains(serve: Any, goldens: Path) -> None:
    server = serve(goldens / "llama-grouped", "1")
    url = server.url.replace("ws:", "http:") + "/health"
    assert got(url) == (200, '{"status":"ok"}')
    server.app.draining = True
    assert got(url) == (503, '{"status":"draining"}')


def test_metrics_count_steps_and_refusals(serve: Any, goldens: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = goldens / "llama-grouped"
    server = serve(folder, "1", token="secret")
    with metrics_server("127.0.0.1", 0) as address, caplog.at_level(logging.INFO, "glgpt.split"):
        before = values(got(address)[1])
        with load(folder, rest=server.url, token="secret", device="software") as model:
            list(model.generate_ids([1, 2, 3], 3, temperature=0))
            during = values(got(address)[1])
        with pytest.raises(GlgptError, match="the token is wrong"):
            load(folder, rest=server.url, token="wrong", device="software")
        after = values(got(address)[1])
    assert during["glgpt_split_connections"] == during["glgpt_split_sessions"] == 1
    assert during["glgpt_split_max_sessions"] == 8 and during["glgpt_split_draining"] == 0
    assert during["glgpt_split_step_seconds_count"] - before["glgpt_split_step_seconds_count"] >= 3
    assert during["glgpt_split_received_bytes_total"] > before["glgpt_split_received_bytes_total"]
    assert after['glgpt_split_refused_total{code="token"}'] >= 1
    assert after["process_resident_memory_bytes"] > 1 << 20
    fields = [record.fields for record in caplog.records if record.message == "refused"]  # type: ignore[attr-defined]
    assert fields[-1]["code"] == "token" and fields[-1]["client"].startswith("127.0.0.1:")


def test_a_message_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    args = argparse.Namespace(log_file=None, log_level="info", log_format="json", metrics=None)
    with log_on_stderr():
        with operated(args):
            logging.getLogger("glgpt.page").info("a message")
        logging.getLogger("glgpt.page").info("another")
    first, second = capsys.readouterr().err.splitlines()
    assert json.loads(first)["message"] == "a message" and second == "glgpt: another"


def test_an_address_for_metrics_that_is_taken_is_refused() -> None:
    with metrics_server("127.0.0.1", 0) as address:
        port = int(address.split(":")[2].partition("/")[0])
        said = f"--metrics 127.0.0.1:{port} cannot be used: Address already in use"
        with pytest.raises(ArgumentError, match=said), metrics_server("127.0.0.1", port):
            pass


@pytest.mark.slow
def test_a_configured_server_logs_json_to_its_file(goldens: Path, tmp_path: Path) -> None:
    config = tmp_path / "split.toml"
    config.write_text(
        f"model = {json.dumps(str(goldens / 'llama-grouped'))}\n"
        'blocks = "1"\nlisten = 0\ndevice = "software"\njson = true\nmetrics = 0\n'
        f'log-level = "info"\nlog-format = "json"\nlog-file = {json.dumps(str(tmp_path / "split.log"))}\n'
    )
    command = [sys.executable, "-m", "glgpt", "split", "serve", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert process.stdout
            ready = json.loads(process.stdout.readline())
            first = json.loads((tmp_path / "split.log").read_text().splitlines()[0])
            assert got(ready["url"].replace("ws:", "http:") + "/health")[0] == 200
            assert "glgpt_split_connections 0.0" in got(first["url"])[1]
        finally:
            process.terminate()
        assert process.wait(30) == 143
    assert first["message"] == "metrics are served" and first["level"] == "info"
