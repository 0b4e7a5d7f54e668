"""The paths of the shaders and default weights (beside the package in a checkout, inside it in a wheel).

Reading files that a stranger may have made, and writing files whole or not at all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from glgpt.errors import FileError, GlgptError, quoted
from glgpt.system.outputs import kind_of

PACKAGE = Path(__file__).resolve().parents[1]
MOST_JSON = 32 << 20  # bytes of a JSON file: a tokenizer.json of a million tokens fits
MOST_VALUES = 1 << 22  # in a JSON file: a short file of empty lists takes twenty times its size in memory
MOST_DIGITS = 40  # of a whole number in JSON: anything longer is no size, step or id
_LFS = b"version https://git-lfs"


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


def open_regular(path: Path) -> IO[bytes]:
    """The file, open for reading. Never waits: a pipe, a device or a socket is refused, also behind a link.

    Raises OSError as `open` does, and FileError for what is no regular file.
    """
    # Looked at first, since opening a device may do something; and again once open, since names change.
    _check_kind(path, path.stat().st_mode)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags), "rb")
    try:
        _check_kind(path, os.fstat(file.fileno()).st_mode)
    except BaseException:
        file.close()
        raise
    return file


def _check_kind(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise FileError(f"{quoted(path, 300)} is {kind_of(mode)}; it must be a regular file")


def open_input(path: Path) -> IO[bytes]:
    """A file that a stranger may have made, open for reading at its start.

    Raises FileError, naming it, for a missing or unreadable one, one that is no regular file, or an LFS pointer.
    """
    name = quoted(path, 300)
    try:
        file = open_regular(path)
        start = file.read(len(_LFS))
        file.seek(0)
    except FileNotFoundError:
        raise FileError(f"{name} is missing") from None
    except OSError as error:
        raise FileError(f"{name} cannot be read: {error.strerror or quoted(error)}") from None
    except ValueError as error:
        if isinstance(error, GlgptError):
            raise
        raise FileError(f"{name} is no possible name") from None  # a zero byte in it
    if start == _LFS:
        file.close()
        raise FileError(f"{name} is a Git-LFS pointer, not the file itself; run git lfs pull in its repository")
    return file


def read_bytes(path: Path, most: int = MOST_JSON) -> bytes:
    """All of a file. Raises FileError as `open_input` does, and for one of more than `most` bytes."""
    with open_input(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size  # to read more would take the memory for it
            data = file.read(min(size, most) + 1)
        except OSError as error:
            raise FileError(f"{quoted(path, 300)} cannot be read: {error.strerror}") from None
    if len(data) > most:
        raise FileError(f"{quoted(path, 300)} is larger than the {most:,} bytes that such a file may have")
    return data


def read_text(path: Path, most: int = MOST_JSON) -> str:
    """All of a UTF-8 file. Raises FileError as `read_bytes` does, and for what is no UTF-8."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{quoted(path, 300)} is no UTF-8 text (byte {error.start})") from None


def read_json(path: Path, most: int = MOST_JSON) -> dict[str, Any]:
    """A JSON object. Raises FileError as `read_text` does, and for anything else than an object of some size."""
    return parsed_json(read_text(path, most), quoted(path, 300))


def holds_manifest(folder: Path, fields: set[str]) -> bool:
    """Whether a folder has a `manifest.json`, an object with these fields; never raises, whatever is there."""
    try:
        return fields <= read_json(folder / "manifest.json").keys()
    except GlgptError:
        return False


def parsed_json(text: str, name: str) -> dict[str, Any]:
    """The JSON object in `text`, which comes from the file `name`. Raises FileError for anything else."""
    if text.count(",") + text.count("[") + text.count("{") > MOST_VALUES:
        raise FileError(f"{name} holds more values than the {MOST_VALUES:,} that such a file may have")
    try:
        value = json.loads(text, parse_int=_whole)
    except RecursionError:
        raise FileError(f"{name} is not valid JSON: it is nested too deep") from None
    except ValueError as error:
        raise FileError(f"{name} is not valid JSON: {quoted(error, 160)}") from None
    if not isinstance(value, dict):
        raise FileError(f"{name} holds no JSON object")
    return value


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits)} digits")
    return int(digits)


def write_json(path: Path, value: dict[str, Any], private: bool = False) -> None:
    """Writes a JSON file, whole or not at all; a `private` one can be read by this user only.

    Raises FileError for a text that is not UTF-8.
    """
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    check_utf8(text, f"{quoted(path, 300)} cannot hold it")
    with written_whole(path, private) as file:
        file.write(text.encode())


def check_utf8(text: str, why: str) -> None:
    """Raises FileError for a text, such as a file's name, that is not UTF-8; `why` says what that prevents."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = quoted(text[max(0, error.start - 40) : error.start + 40])
        raise FileError(f"{shown} is not UTF-8, and {why}: rename the file") from None


@contextlib.contextmanager
def written_whole(path: Path, private: bool = False) -> Iterator[IO[bytes]]:
    """A binary file to write that appears under its name only when it is complete, at no time readable if `private`.

    Raises FileError where something else than a file has the name, and OSError that names the file where the disk is
    full or the folder cannot be written to.
    """
    with named_errors(path):
        _check_replaceable(path)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            if not private:  # as which it was made
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
        why = re.sub(r"^\[Errno \d+\] ", "", str(error.args[0][0][-1])).partition(": ")[0]
        raise OSError(0, why, str(path)) from error
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
