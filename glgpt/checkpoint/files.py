"""Names the weight files of a checkpoint's folder, and reads the index of a sharded checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

from glgpt.errors import FileError, quoted, written
from glgpt.system.files import read_json

_PLAIN = ("model.safetensors", "pytorch_model.bin")
WEIGHT_FILES = tuple(name + suffix for name in _PLAIN for suffix in ("", ".index.json"))  # in order of preference


def weight_map(index: Path) -> dict[str, str]:
    """Reads an index; returns for each tensor the name of its shard (the file that holds the tensor).

    Raises FileError for an invalid index, such as one that names a shard outside the folder.
    """
    shards = read_json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise FileError(f"{quoted(index, 300)} has no weight_map")
    for name, shard in shards.items():
        if not isinstance(shard, str) or not re.fullmatch(r"[\w.-]{1,100}\.(safetensors|bin)", shard):
            where = f"{quoted(index, 300)} has an invalid file name for tensor"
            raise FileError(f"{where} {written(name)}: {written(shard)}")
    return shards


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or the name of the error's class if the message is empty.

    Omits the file name in an OSError's message.
    """
    if isinstance(error, OSError) and error.strerror:
        return quoted(error.strerror)
    return quoted((str(error).strip().splitlines() or [type(error).__name__])[0].strip(), 300)
