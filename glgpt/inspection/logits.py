"""Writes a prompt's logits to a file that `glgpt compare --reference` reads."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from glgpt.inference.model import LanguageModel
from glgpt.system.files import written_whole
from glgpt.system.outputs import output_file


def checked_file(name: str | Path) -> Path:
    """Returns the path at which to write logits.

    Raises FileError if the name does not end in `.npz`, or if something other than a file of logits has this name.
    """
    return output_file(name, ".npz", ("file of logits", _holds_logits))


def _holds_logits(file: Path) -> bool:
    try:
        with zipfile.ZipFile(file) as archive:
            return {"tokens.npy", "logits.npy"} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def save_logits(model: LanguageModel, ids: Sequence[int], path: Path) -> tuple[int, ...]:
    """Writes `tokens` int32 [T] and `logits` float32 [T, vocab]; returns the shape of the logits."""
    logits = model.logits(ids)
    with written_whole(path) as file:
        np.savez_compressed(file, tokens=np.asarray(ids, np.int32), logits=logits)
    return logits.shape
