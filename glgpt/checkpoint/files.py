"""The files of a checkpoint's folder: which hold weights, reading JSON, the index of shards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from glgpt.errors import GlgptError

_PLAIN = ("model.safetensors", "pytorch_model.bin")
WEIGHT_FILES = tuple(name + suffix for name in _PLAIN for suffix in ("", ".index.json"))  # in order of preference
_LFS = b"version https://git-lfs"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises GlgptError naming the file where it is missing, unreadable or something else."""
    check_readable(path)
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise GlgptError(f"{path} is not valid JSON: {first_line(error)}") from None
    if not isinstance(value, dict):
        raise GlgptError(f"{path} holds no JSON object")
    return value


def check_readable(path: Path) -> None:
    """Raises GlgptError where a file is missing, cannot be read, or is a Git-LFS pointer."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_LFS))
    except FileNotFoundError:
        raise GlgptError(f"{path} is missing") from None
    except OSError as error:
        raise GlgptError(f"{path} cannot be read: {error.strerror or error}") from None
    if start == _LFS:
        raise GlgptError(f"{path} is a Git-LFS pointer, not the file itself; run git lfs pull in its repository")


def weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> shard, of a sharded checkpoint's index. Raises GlgptError for names outside the folder."""
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise GlgptError(f"{index} has no weight_map")
    for name, shard in shards.items():
        # A shard outside the folder would be someone else's file.
        if not isinstance(shard, str) or not re.fullmatch(r"[\w.-]+\.(safetensors|bin)", shard):
            raise GlgptError(f"{index} names no proper file for tensor {name!r}: {str(shard)[:80]!r}")
    return shards


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its class where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip()[:300]
