"""Tests `glgpt api` (its output, an answer, a signal, bad input) and options for constrained text."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2 as httpx
import pytest
from helpers.chat_models import chat_llama
from helpers.command_line import Capture, refused

from glgpt.cli import main

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(chat_llama(tmp_path_factory.mktemp("model") / "tiny.gguf"))


@pytest.mark.slow
def test_a_server_answers_and_lets_a_running_answer_end(model: str) -> None:
    """Fails if a signal cuts off an answer, or a request without the key of GLGPT_API_KEY is answered."""
    command = [sys.executable, "-m", "glgpt", "api", model, "--port", "0", "--device", "software"]
    key = {"GLGPT_API_KEY": "a-long-key"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | key) as server:
        try:
            assert server.stdout
            said = server.stdout.readline()
            found = re.fullmatch(r"tiny\.gguf, context of 512 tokens: (http://127\.0\.0\.1:\d+/v1)\n", said)
            assert found, said
            with httpx.Client(base_url=found[1], headers={"Authorization": "Bearer a-long-key"}, timeout=120) as web:
                assert web.get("/models", headers={"Authorization": ""}).status_code == 401
                body = {"messages": HELLO, "guided_regex": "[ab]{60}", "stream": True}
                with web.stream("POST", "/chat/completions", json=body) as answer:
                    lines = answer.iter_lines()
                    next(lines)
                    server.send_signal(signal.SIGTERM)
                    rest = list(lines)
                assert rest[-2] == "data: [DONE]" or rest[-1] == "data: [DONE]"
                pieces = [json.loads(line[6:]) for line in rest if line.startswith("data: {")]
                text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
                assert re.fullmatch("[ab]{60}", text)
            assert server.wait(60) == 143
        finally:
            server.kill()


def test_bad_input_is_refused(model: str, capsys: Capture, tmp_path: Path) -> None:
    key = tmp_path / "key.txt"
    key.write_text("short\n")
    assert "give a key with --api-key-file" in refused(capsys, "api", model, "--host", "0.0.0.0")
    assert "at least 8 visible" in refused(capsys, "api", model, "--api-key-file", str(key))
    assert "give one of them" in refused(capsys, "api", model, "--api-key", "a" * 9, "--api-key-file", str(key))
    assert "not an origin" in refused(capsys, "api", model, "--origin", "chat.example.org")
    assert "up to 8" in refused(capsys, "api", model, "--parallel", "9")
    assert "does not exist" in refused(capsys, "api", str(tmp_path / "none.gguf"), "--port", "0")


def test_options_of_constrained_text(model: str, capsys: Capture, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}))
    how = ["--model", model, "--device", "software", "--json"]
    for options, wanted in {
        ("--json-schema", str(schema)): r"\[[12], [12]\]",
        ("--regex", "[ab]{3}"): "[ab]{3}",
        ("--choice", "yes", "--choice", "no"): "yes|no",
    }.items():
        assert main(["generate", "hello", *how, *options]) == 0
        assert re.fullmatch(wanted, json.loads(capsys.readouterr().out)["text"])
    assert main(["chat", "--message", "hello", *how, "--choice", "maybe"]) == 0
    assert json.loads(capsys.readouterr().out)["messages"][1]["content"] == "maybe"
    assert "cannot be combined" in refused(capsys, "generate", "a", "--regex", "a", "--choice", "b")
    schema.write_text("[1")
    assert "schema.json: the JSON schema is not JSON" in refused(capsys, "generate", "a", "--json-schema", str(schema))
    for command in (["generate", "a", "--model"], ["chat", "--message", "a"]):  # refused before the model is opened
        assert "cannot be used" in refused(capsys, *command, "none.gguf", "--regex", "(?=a)b")
    schema.write_text('{"type": "nothing"}')
    assert "schema.json: the JSON schema cannot be used" in refused(capsys, "chat", "--json-schema", str(schema))
