"""Reads the files of a model, such as config.json, from a Hugging Face folder or from a GGUF file.

A GGUF file holds in one file what a Hugging Face folder holds in several. This module converts the contents of a GGUF
file to the contents of the files in such a folder.

`has_file` and the `read` functions take the path of a folder or of a GGUF file. Callers can therefore check the
contents of both with the same code.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glgpt.errors import FileError, quoted
from glgpt.gguf.model_config import model_config
from glgpt.gguf.reader import identity, is_gguf, open_gguf
from glgpt.gguf.tokenizer_files import tokenizer_files
from glgpt.system.files import MAX_JSON_BYTES, read_bytes, read_json, read_text

CONFIG = "config.json"


def has_file(model: Path, name: str) -> bool:
    """True if a model's folder or GGUF file has the contents of the file `name`.

    Raises FileError for a damaged GGUF file.
    """
    return name in _contents(model) if is_gguf(model) else (model / name).exists()


def read_model_json(model: Path, name: str) -> dict[str, Any]:
    """Returns the JSON object of the file `name`. Raises FileError if it is missing or damaged."""
    return dict(_content(model, name)) if is_gguf(model) else read_json(model / name)


def read_model_text(model: Path, name: str, most: int = MAX_JSON_BYTES) -> str:
    """Returns the text of the file `name`. Raises FileError if it is missing, or has more than `most` bytes."""
    if not is_gguf(model):
        return read_text(model / name, most)
    text = str(_content(model, name))
    if len(text.encode(errors="replace")) > most:
        raise FileError(f"{quoted(model, 300)}: {name} is larger than the limit of {most:,} bytes")
    return text


def read_model_bytes(model: Path, name: str) -> bytes:
    """Returns the file `name` as bytes. Raises FileError if it is missing or too large."""
    if not is_gguf(model):
        return read_bytes(model / name)
    content = _content(model, name)
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1) + "\n"
    return text.encode(errors="replace")


def file_name(model: Path, name: str) -> Path:
    """Returns the path that messages about the file `name` show: the GGUF file itself, or the file in the folder."""
    return model if is_gguf(model) else model / name


def _content(model: Path, name: str) -> Any:
    try:
        return _contents(model)[name]
    except KeyError:
        raise FileError(f"{quoted(model, 300)} has no {name}") from None


def _contents(model: Path) -> Mapping[str, Any]:
    return _converted(model, identity(model))


@functools.lru_cache(maxsize=1)
def _converted(path: Path, _identity: tuple[int, ...]) -> Mapping[str, Any]:
    file = open_gguf(path)
    return {CONFIG: model_config(file)} | tokenizer_files(file)
