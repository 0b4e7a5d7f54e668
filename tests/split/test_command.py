"""Tests `glgpt split serve` and the commands that use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from glgpt.cli import main

GLGPT = [sys.executable, "-m", "glgpt"]


@pytest.fixture
def serving(goldens: Path) -> Iterator[Any]:
    """Runs a server of one block. Yields its process and its ready message."""
    command = [
        *GLGPT,
        "split",
        "serve",
        "--model",
        str(goldens / "llama-grouped"),
        "--blocks",
        "1",
        "--listen",
        "0",
        "--json",
    ]
    command += ["--device", "software", "--sessions", "2"]
    environment = os.environ | {"GLGPT_SPLIT_TOKEN": "open sesame"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout
    yield process, json.loads(process.stdout.readline())
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_it_says_what_it_holds_serves_a_text_and_ends_at_a_signal(
    serving: Any, goldens: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, ready = serving
    assert ready["event"] == "ready" and ready["holds"] == "1,head" and ready["sessions"] == 2
    assert 0 < ready["session_bytes"] < ready["shared_bytes"] and ready["session_bytes"] < ready["texture_bytes"]
    monkeypatch.setenv("GLGPT_SPLIT_TOKEN", "open sesame")
    base = ["generate", "--model", str(goldens / "llama-grouped"), "--ids", "3,31,6", "--tokens", "4", "--seed", "1"]
    base += ["--json", "--device", "software"]
    assert main(base) == 0
    whole = json.loads(capsys.readouterr().out)
    for how in (["--split", ready["url"]], ["--plan", f"0@here,1@{ready['url']}"]):
        assert main([*base, *how]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["ids"] == whole["ids"]
        here, there = found["split"]
        assert (here["part"], here["place"], there["place"]) == ("embed,0", "here", ready["url"])
        assert there["rows"] == 6 and there["sent"] > 6 * 4 * ready["bytes_per_token"]["int8"] and there["received"] > 0
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert process.stderr.read() == "glgpt: terminated\n"


def test_a_proxy_that_cannot_be_used_is_one_clear_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: a proxy without a scheme caused a traceback."""
    monkeypatch.setenv("http_proxy", "localhost:3128")
    monkeypatch.setenv("no_proxy", "")
    assert main(["generate", "--split", "ws://server.invalid:1", "x"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "through the proxy of the environment" in err, err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["split", "serve", "--blocks", "9"], "blocks 9-9 are out of range: the model has blocks 0 to 5"),
        (["split", "serve", "--blocks", "x"], "'x' is not a part of a model"),
        (["split", "serve", "--blocks", ""], "'' is not a part of a model"),
        (["split", "serve", "--token", "a\udcff"], "--token or $GLGPT_SPLIT_TOKEN is not UTF-8 text"),
        (["split", "serve", "--metrics", "a\udcff:0", "--device", "software"], "it is not a host's name"),
        (["split", "serve", "--listen", "nowhere"], "--listen 'nowhere' is not [HOST:]PORT"),
        (["split", "serve", "--blocks", "5", "--listen", "0.0.0.0:0", "--device", "software"], "give --token"),
        (["split", "serve", "--blocks", "5", "--tls", "no.pem", "no.key", "--device", "software"], "--tls no.pem"),
        (["generate", "--split", "ws://127.0.0.1:1", "x"], "check that `glgpt split serve` is running there"),
        (["generate", "--split", "ftp://x", "x"], "'ftp://x' is not a server's address"),
        (["generate", "--plan", "0-5", "x"], "'0-5' is not a plan"),
        (["generate", "--plan", "0-5@here", "--regex", "a", "--device", "software", "x"], "not support a constraint"),
        (["generate", "--plan", "0-3@here,5@here", "x"], "the plan has embed,0-3 and then 5,head"),
        (["generate", "--plan", "1-5@here", "x"], "the plan lacks the embedding"),
        (["generate", "--wire", "f16", "x"], "--wire needs --split or --plan"),
        (["export", "--out", "page", "--wire", "f16"], "--wire needs --server URL"),
        (["generate", "--split", "ws://a", "--plan", "0-5@here", "x"], "give one of them"),
        (["export", "--out", "page", "--split", "2"], "--split needs --server URL"),
        (["export", "--out", "page", "--head", "page"], "--head needs --server URL"),
        (["export", "--out", "page", "--head", "page", "--server", "ws://a"], "--head page needs --split K"),
        (
            ["export", "--out", "page", "--train", "--server", "ws://a"],
            "--server cannot be combined with --single-file",
        ),
        (["export", "--out", "page", "--split", "6", "--server", "ws://a"], "--split 6 is out of range"),
        (["export", "--out", "page", "--split", "2", "--server", "ws://a; x"], "is not a plain server address"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLGPT_SPLIT_TOKEN", raising=False)
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and message in err, err
    assert list(tmp_path.iterdir()) == []
