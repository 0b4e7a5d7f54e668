"""Tests files with the KV caches of a chat: what a later process reuses, and which files are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.chat_models import chat_llama

from glgpt.cli import main
from glgpt.errors import FileError
from glgpt.inference.conversation import Conversation
from glgpt.inference.model import LanguageModel
from glgpt.models import context

GREEDY: dict[str, Any] = {"temperature": 0, "tokens": 12}


def changed(data: bytes, edit: Callable[[dict[str, Any]], object]) -> bytes:
    """Returns a safetensors file after `edit` changed its header."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    edit(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


@pytest.mark.parametrize("cache_dtype", ["f32", pytest.param("f16", marks=pytest.mark.slow)])
def test_a_chat_continues_in_another_process_and_hostile_files_are_refused(tmp_path: Path, cache_dtype: str) -> None:
    """Fails if a saved value differs, or if a damaged file or a file of another model is used."""
    path, file = chat_llama(tmp_path / "model.gguf"), tmp_path / "cache"
    with LanguageModel.from_pretrained(path, device="software", cache_dtype=cache_dtype) as model:
        first = Conversation(model, system="Be brief.", **GREEDY)
        "".join(first.send("hello, who are you?"))
        first.read_ahead()
        tokens = model.save_cache(file)
        wanted = "".join(first.send("and where?"))
        assert first.last
        reused = first.last.stats.cached_tokens
        assert 0 < reused <= tokens
    data = file.read_bytes()
    with LanguageModel.from_pretrained(path, device="software", cache_dtype=cache_dtype) as model:
        assert model.load_cache(file) == tokens
        again = Conversation(model, first.messages[:-1], **GREEDY)
        assert "".join(again.answer()) == wanted
        assert again.last and again.last.stats.cached_tokens == reused
        about = "glgpt.cache"

        def other(header: dict[str, Any]) -> None:
            header["__metadata__"][about] = header["__metadata__"][about].replace('"model": "', '"model": "0')

        def longer(header: dict[str, Any]) -> None:
            header["ids"]["shape"] = [1, *header["ids"]["shape"]]

        end = len(data) - 4
        wrong = {
            "another model": changed(data, other),
            "not a saved cache": changed(data, lambda header: header["__metadata__"].pop(about)),
            "does not have the tensors": changed(data, lambda header: header.update(more=header.pop("chunks"))),
            "holds|shape": changed(data, longer),
            "damaged": data[:end] + np.float32(np.nan).tobytes(),
            "not a valid safetensors": data[:end],
        }
        for said, content in wrong.items():
            file.write_bytes(content)
            with pytest.raises(FileError, match=said):
                model.load_cache(file)
        assert model._decoder._kept  # type: ignore[union-attr]  # the model has its caches still
    other_model = chat_llama(tmp_path / "other.gguf", context=256)
    file.write_bytes(data)
    with (
        LanguageModel.from_pretrained(other_model, device="software", cache_dtype=cache_dtype) as model,
        pytest.raises(FileError),
    ):
        model.load_cache(file)


def test_the_context_grows_as_the_file_requires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a file saved after the context had grown is refused, or a damaged file makes the context grow."""
    monkeypatch.setattr(context, "DEFAULT_CONTEXT", 64)
    path, file = chat_llama(tmp_path / "model.gguf"), tmp_path / "cache"
    with LanguageModel.from_pretrained(path, device="software") as model:
        chat = Conversation(model, **GREEDY)
        "".join(chat.send("hello " * 20))
        chat.read_ahead()
        tokens = model.save_cache(file)
    with LanguageModel.from_pretrained(path, device="software") as model:
        other = Conversation(model, temperature=0, tokens=4)
        "".join(other.send("hi"))
        data = file.read_bytes()
        file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(FileError, match="damaged"):
            model.load_cache(file)
        assert model.context == 64 and model._decoder._kept  # type: ignore[union-attr]
        file.write_bytes(data)
        assert model.context == 64 < tokens == model.load_cache(file)


def test_the_option_saves_and_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, file = str(chat_llama(tmp_path / "model.gguf")), tmp_path / "cache"
    command = ["chat", model, "--message", "hello, who are you?", "--temperature", "0", "--tokens", "4", "--json"]
    command += ["--device", "software", "--cache", str(file)]
    assert main(command) == 0
    first = capsys.readouterr()
    assert "was saved" in first.err and file.stat().st_mode & 0o077 == 0
    assert main(command) == 0
    second = capsys.readouterr()
    assert "was loaded" in second.err
    assert json.loads(second.out)["messages"] == json.loads(first.out)["messages"]
    assert json.loads(second.out)["turns"][0]["cached_tokens"] > 0
    for other in (b"nothing", b"The notes of Monday, which are long enough."):
        file.write_bytes(other)
        assert main(command) == 2
        assert "is not a saved cache; give a file that --cache wrote, or a new name" in capsys.readouterr().err
