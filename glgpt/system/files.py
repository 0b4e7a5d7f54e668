"""Finds data files, reads untrusted files with limits, and writes files atomically.

Shaders and default weights are next to the package in a checkout, and inside the package in a wheel.
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
from glgpt.system.signals import deferred

PACKAGE = Path(__file__).resolve().parents[1]
MAX_JSON_BYTES = 32 << 20  # maximum size of a JSON file: a tokenizer.json with 256,000 tokens fits
MAX_JSON_VALUES = 1 << 22  # maximum values in a JSON file: a parsed list may take twenty times the memory of its text
MAX_DIGITS = 40  # maximum digits of an integer in JSON: a longer integer is not a size, a step or an id
OLD = "old"  # name of the earlier folder while `swap` replaces it
_LFS = b"version https://git-lfs"


def data_path(name: str) -> Path:
    """Returns the path of a data file or folder, such as "glsl" or "weights/shakespeare", in a checkout or the wheel.

    Raises GlgptError if the file or folder is in neither.
    """
    in_checkout = (PACKAGE.parent / "pyproject.toml").is_file() and PACKAGE.parent / name
    for path in (in_checkout, PACKAGE / "_data" / name):
        if path and path.exists():
            return path
    raise GlgptError(f"{name} is missing next to {PACKAGE}; reinstall glgpt, or run it from a complete checkout")


def cache_path() -> Path:
    """Returns the cache folder, `glgpt` in $XDG_CACHE_HOME or ~/.cache.

    Files that a user deletes are created again, except the resume keys and AdamW moments of federated clients.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glgpt"


def open_regular(path: Path) -> IO[bytes]:
    """Opens a regular file for reading. Never blocks: refuses pipes, devices, sockets, and links to these.

    Raises OSError as `open` does, and FileError if the file is not regular.
    """
    # Checks before opening, because opening a device may affect the device, and again afterwards, because the path may
    # have changed in between.
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
    """Opens an untrusted file for reading.

    Raises FileError, naming the file, if it is missing, unreadable, not a regular file, or a Git LFS pointer.
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
        raise FileError(f"{name} is not a valid file name") from None  # a zero byte, or not Unicode text
    if start == _LFS:
        file.close()
        raise FileError(f"{name} is a Git LFS pointer, not the file itself; run git lfs pull in its repository")
    return file


def read_bytes(path: Path, most: int = MAX_JSON_BYTES) -> bytes:
    """Reads a whole file. Raises FileError as `open_input` does, and for a file of more than `most` bytes."""
    with open_input(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size  # `read(n)` allocates n bytes, so n is not simply `most`
            data = file.read(min(size, most) + 1)
        except OSError as error:
            raise FileError(f"{quoted(path, 300)} cannot be read: {error.strerror}") from None
    if len(data) > most:
        raise FileError(f"{quoted(path, 300)} is larger than the limit of {most:,} bytes")
    return data


def read_text(path: Path, most: int = MAX_JSON_BYTES) -> str:
    """Reads a whole UTF-8 file. Raises FileError as `read_bytes` does, and for a file that is not UTF-8."""
    try:
        return read_bytes(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{quoted(path, 300)} is not UTF-8 text (byte {error.start})") from None


def read_json(path: Path, most: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Reads a JSON object. Raises FileError as `read_text` and `parsed_json` do."""
    return parsed_json(read_text(path, most), quoted(path, 300))


def holds_manifest(folder: Path, fields: set[str], name: str = "manifest.json") -> bool:
    """True if `folder` holds a JSON file called `name` with all these fields. Never raises."""
    try:
        return fields <= read_json(folder / name).keys()
    except GlgptError:
        return False


def parsed_json(text: str, name: str) -> dict[str, Any]:
    """Parses the text of the file `name` and returns its JSON object.

    Raises FileError if the text is not a JSON object, or has more than MAX_JSON_VALUES commas and opening brackets.
    """
    if text.count(",") + text.count("[") + text.count("{") > MAX_JSON_VALUES:
        raise FileError(f"{name} holds more than the limit of {MAX_JSON_VALUES:,} values")
    try:
        value = json.loads(text, parse_int=_whole)
    except RecursionError:
        raise FileError(f"{name} is not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise FileError(f"{name} is not valid JSON: {quoted(error, 160)}") from None
    if not isinstance(value, dict):
        raise FileError(f"{name} does not hold a JSON object")
    return value


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits")
    return int(digits)


def write_json(path: Path, value: dict[str, Any], private: bool = False) -> None:
    """Writes a JSON file atomically; only this user can read a `private` one.

    Raises FileError for a string in `value` that cannot be encoded as UTF-8.
    """
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    check_utf8(text, f"{quoted(path, 300)} cannot hold it")
    with written_whole(path, private) as file:
        file.write(text.encode())


def read_cache(path: Path, most: int) -> dict[str, Any]:
    """Returns the JSON object of a cache file of up to `most` bytes; {} if the file cannot be read."""
    try:
        return read_json(path, most)
    except (GlgptError, OSError):
        return {}


def write_cache(path: Path, value: dict[str, Any]) -> None:
    """Writes a cache file as `write_json` does. Ignores errors, because a cache is optional."""
    with contextlib.suppress(GlgptError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, value)


def check_utf8(text: str, why: str) -> None:
    """Raises FileError for a text, such as a file name, that UTF-8 cannot encode. `why` is part of the message."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        shown = quoted(text[max(0, error.start - 40) : error.start + 40])
        raise FileError(f"{shown} is not UTF-8, and {why}: rename the file") from None


@contextlib.contextmanager
def written_whole(path: Path, private: bool = False) -> Iterator[IO[bytes]]:
    """Yields a binary file to write, which appears at `path` only when the block completes.

    A `private` file is never readable by other users. Raises FileError if something other than a file or a link is at
    `path`, and an OSError that names the file if the disk is full or the folder is not writable.
    """
    with named_errors(path):
        _check_replaceable(path)
        name = ""
        try:
            with deferred():  # an interrupt before `name` is set would leave the file in place
                handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            with os.fdopen(handle, "wb") as file:
                yield file
            if not private:  # mkstemp makes private files
                Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(path)
        except BaseException:
            if name:
                Path(name).unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Makes an OSError name `path` if the error names no file (as for a full disk) or only a temporary file."""
    try:
        yield
    except shutil.Error as error:  # its argument is a list of (source, destination, reason)
        why = re.sub(r"^\[Errno \d+\] ", "", str(error.args[0][0][-1])).partition(": ")[0]
        raise OSError(0, why, str(path)) from error
    except OSError as error:
        staging = f".{path.name}."  # prefix of the temporary names of `written_whole`, `staged_folder` and exports
        if error.filename is not None and not any(p.startswith(staging) for p in Path(str(error.filename)).parts):
            raise
        # NumPy's error for a short write has no errno, only a message with the number of bytes
        raise OSError(error.errno or 0, error.strerror or f"cannot be written ({error})", str(path)) from error


@contextlib.contextmanager
def staged_folder(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yields a folder to fill. Its files appear in `path` when the block completes; if the block fails, none appear.

    If `path` exists (`outputs.output_folder` checks that it may be written), files in it with the same names are
    replaced and other files stay; `manifest.json` is replaced last. With `replace`, the whole folder is replaced.
    Missing parent folders are made.
    """
    with workplace(path) as work:
        folder = work / "new"
        folder.mkdir()
        yield folder
        folder.chmod(0o777 & ~_umask())
        if path.exists() and not replace:
            _merge(folder, path)
        else:
            swap(folder, path, work)


@contextlib.contextmanager
def workplace(out: Path) -> Iterator[Path]:
    """Yields a temporary folder next to `out`; then removes the folder, and empty parents of `out` that it created."""
    made, work = [folder for folder in out.parents if not folder.exists()], None
    with named_errors(out):
        try:
            with deferred():  # an interrupt before `work` is set would leave the folders in place
                out.parent.mkdir(parents=True, exist_ok=True)
                work = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
            yield work
        finally:
            # Without a folder at `out`, `work` may have the only copy of the earlier folder.
            if work and (not (work / OLD).exists() or out.exists()):
                shutil.rmtree(work, ignore_errors=True)
            with contextlib.suppress(OSError):  # `rmdir` fails for a parent that holds the finished folder
                for above in made:
                    above.rmdir()


def swap(new: Path, out: Path, work: Path) -> None:
    """Moves `new` to `out`. An earlier folder there is moved to `work`, and back if the move of `new` fails."""
    old = work / OLD
    try:
        if out.exists():
            out.rename(old)
        new.rename(out)
    except BaseException:
        if old.exists() and not out.exists():
            old.rename(out)
        raise


def _merge(folder: Path, path: Path) -> None:
    files = sorted((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.name == "manifest.json")
    for file in files:
        _check_replaceable(path / file.relative_to(folder))
    for file in files:
        place = path / file.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)


def _check_replaceable(path: Path) -> None:
    """Raises FileError if `path` is a folder, a pipe, a socket or a device, which a file must not replace."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            raise FileError(f"{path} is not a file and was not replaced; choose another name")


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
