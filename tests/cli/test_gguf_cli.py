"""Tests that commands that take a model accept a GGUF file, and refuse a damaged file in one line."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import refused
from helpers.exports import few_recordings
from helpers.gguf_files import LLAMA, llama, tokenizer
from helpers.small_page import small_page

from glgpt import LanguageModel
from glgpt.cli import main

TEMPLATE = "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}"


@pytest.fixture
def model(tmp_path: Path) -> str:
    metadata = LLAMA | tokenizer() | {"tokenizer.chat_template": TEMPLATE, "general.name": "Tiny"}
    return str(llama(tmp_path / "tiny.gguf", "Q8_0", metadata))


@pytest.mark.slow
def test_commands_that_run_a_model(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = ["--model", model, "--device", "software"]
    assert main(["generate", "hello", "--tokens", "3", "--temperature", "0", "--json", *device]) == 0
    found = json.loads(capsys.readouterr().out)
    with LanguageModel.from_pretrained(model, device="software") as loaded:
        assert loaded.name == "Tiny"
        assert loaded.generate("hello", 3, temperature=0).read() == found["text"]
    assert main(["logits", "hello", "--out", str(tmp_path / "x.npz"), *device]) == 0
    (tmp_path / "text.txt").write_text("hello world, hello")
    assert main(["eval", str(tmp_path / "text.txt"), "--json", *device]) == 0
    assert main(["dump", "hello", "--out", str(tmp_path / "pictures"), *device]) == 0
    capsys.readouterr()
    assert main(["info", "--json", *device]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["path"] == model


@pytest.mark.slow
def test_a_page_and_a_run_begin_from_a_file(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = small_page(tmp_path / "dist")
    monkeypatch.setattr("glgpt.page.export.built_page", lambda: built)
    page, run = tmp_path / "page", tmp_path / "run"
    with few_recordings("4x4"):
        assert main(["export", "--model", model, "--out", str(page), "--device", "software"]) == 0
    manifest = json.loads((page / "manifest.json").read_text())
    assert manifest["model"] == "Tiny" and manifest["chat"] == [261, None, 262]
    (tmp_path / "text.txt").write_text("hello world, hello\n" * 200)
    words = ["train", str(tmp_path / "text.txt"), "--init", model, "--out", str(run), "--steps", "2", "--batch", "2"]
    assert main([*words, "--context", "16", "--device", "software"]) == 0
    assert main(["convert", str(run), "--to", str(tmp_path / "run.gguf")]) == 0
    with LanguageModel.from_pretrained(run, device="software") as one:
        ids = one.encode("hello world")
        wanted = one.logits(ids)
    with LanguageModel.from_pretrained(tmp_path / "run.gguf", device="software") as other:
        assert other.encode("hello world") == ids
        np.testing.assert_array_equal(other.logits(ids), wanted)
    capsys.readouterr()


def test_a_damaged_file_is_refused_in_one_line(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(model)
    path.write_bytes(path.read_bytes()[:30_000])
    assert "tiny.gguf is not a valid GGUF file: it is truncated" in refused(capsys, "generate", "--model", model, "x")
    path.write_bytes(b"GGUF" + bytes(100))
    assert "is a GGUF file of version 0; glgpt reads versions 2 and 3" in refused(capsys, "info", "--model", model)


@pytest.mark.slow
def test_a_huge_header_is_refused_within_seconds_and_little_memory(tmp_path: Path) -> None:
    """Fails if a count, length or array in a header takes more than 1 GiB of memory or 5 s."""
    script = (
        "import resource, sys\nfrom glgpt.checkpoint.opening import Checkpoint\nfrom glgpt.errors import GlgptError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\nresource.setrlimit(resource.RLIMIT_CPU, (5, 5))\n"
        "for name in sys.argv[1:]:\n    try:\n        Checkpoint.open(name)\n"
        "    except GlgptError as error:\n        print(str(error).split(': ', 1)[-1][:60])\n"
    )
    start = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a"  # one key, "a"
    cases = {
        "bytes": start + struct.pack("<IIQ", 9, 0, 1 << 40),
        "strings": start + struct.pack("<IIQ", 9, 8, (1 << 20) + 1),
        "empty strings": start + struct.pack("<IIQ", 9, 8, 1 << 20),
    }
    for name, data in cases.items():
        with (tmp_path / f"{name}.gguf").open("wb") as file:
            file.write(data)
            file.truncate(256 << 20)  # a sparse file of zeros; eight zero bytes are an empty string
    paths = [str(tmp_path / f"{name}.gguf") for name in cases]
    command = [sys.executable, "-c", script, *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "its header exceeds 128 MiB",
        "its arrays have more than 1,048,576 strings",
        "general.architecture is missing",
    ]
