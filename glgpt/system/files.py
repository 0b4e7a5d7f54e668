"""Where the shaders and default weights lie (beside the package in a checkout, inside it in a wheel); safe writing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from glgpt.errors import FileError, GlgptError

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
    """A binary file to write that appears under its name only when it is complete.

    Raises FileError where something else than a file has the name, and OSError that names the file where the disk is
    full or the folder cannot be written to.
    """
    with named_errors(path):
        _check_replaceable(path)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Gives an OSError that names no file (a write to a full disk) or a half-made one the name `path`."""
    try:
        yield
    except shutil.Error as error:  # of many files, each with its reason as a text
        raise OSError(0, str(error.args[0][0][-1]).partition(": ")[0], str(path)) from error
    except OSError as error:
        staging = f".{path.name}."  # how `written_whole`, `staged_folder` and exports begin a name that nobody knows
        if error.filename is not None and not any(p.startswith(staging) for p in Path(str(error.filename)).parts):
            raise
        # numpy reports a short write by a count alone
        raise OSError(error.errno or 0, error.strerror or f"cannot be written ({error})", str(path)) from error


@contextlib.contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, whose files appear in `path` when the block ends, and not at all where it fails.

    Where `path` exists (see `outputs.output_folder`), files of the same names are replaced, and all others stay. A
    file `manifest.json` takes its place last. Folders missing above `path` are made.
    """
    made = [folder for folder in path.parents if not folder.exists()]
    with named_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            yield folder
            folder.chmod(0o777 & ~_umask())
            if path.exists():
                _merge(folder, path)
            else:
                folder.rename(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # they hold the folder by now, or are not wanted
                for above in made:
                    above.rmdir()


def _merge(folder: Path, path: Path) -> None:
    files = sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.name == "manifest.json")
    for file in files:
        _check_replaceable(path / file.relative_to(folder))
    for file in files:
        place = path / file.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)


def _check_replaceable(path: Path) -> None:
    """Raises FileError where `path` is a folder, a pipe, a socket or a device: a file would take its place."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise FileError(f"{path} is no file and is left as it is")


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
