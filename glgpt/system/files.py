"""Where the shaders and default weights lie (beside the package in a checkout, inside it in a wheel); safe writing."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from glgpt.errors import GlgptError

PACKAGE = Path(__file__).resolve().parents[1]


def data_path(name: str) -> Path:
    """The file or folder `name`, such as "glsl" or "weights/shakespeare": a checkout's first, then the wheel's.

    Raises GlgptError when neither holds it.
    """
    in_checkout = (PACKAGE.parent / "pyproject.toml").is_file() and PACKAGE.parent / name
    for path in (in_checkout, PACKAGE / "_data" / name):
        if path and path.exists():
            return path
    raise GlgptError(f"{name} is missing beside {PACKAGE}; reinstall glgpt, or run it from a whole checkout")


def cache_path() -> Path:
    """Where glgpt keeps what it can make again: `$XDG_CACHE_HOME/glgpt`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glgpt"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON file, whole or not at all."""
    with written_whole(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A binary file to write that appears under its name only when it is complete."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
