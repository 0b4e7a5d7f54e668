"""What `--out` may name: decided before the work begins, the same way for every command."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from glgpt.errors import FileError, quoted

KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
}
Own = tuple[str, Callable[[Path], bool]]  # what this command wrote earlier: "an earlier export", and how to tell


def output_folder(name: str | Path, own: Own | None = None, option: str = "--out", *, held: Own | None = None) -> Path:
    """The folder that `name` leads to, with links resolved: free, empty, or (`own`) written by the same command.

    `held` words the refusal of a folder that something of value is in: ("a run already; ...", how to tell).

    Raises FileError for every other name: empty, the current folder or one above it, a link that leads round in a
    circle, a name that the system does not take, a place below something that is no folder, anything that exists and
    is no such folder.
    """
    path, mode = _resolved(name, option)
    if mode is None:
        return path
    shown = quoted(name)
    if not stat.S_ISDIR(mode):
        raise FileError(f"{option} {shown} is {kind_of(mode)} and is left as it is; name a folder")
    here = Path.cwd()
    if path == here or path in here.parents:
        raise FileError(f"{option} {shown} is the current folder or one above it; name a folder of its own")
    try:
        empty = next(path.iterdir(), None) is None
    except OSError as error:
        raise FileError(f"{option} {shown}: {error.strerror}") from None
    if held and held[1](path):
        raise FileError(f"{option} {shown} holds {held[0]}")
    if not empty and not (own and own[1](path)):
        wanted = f" and is no {own[0]}" if own else ""
        raise FileError(f"{option} {shown} is not empty{wanted}; name another folder")
    return path


def output_file(
    name: str | Path, suffix: str = "", own: Own | None = None, option: str = "--out", *, parents: bool = False
) -> Path:
    """The file that `name` leads to, with links resolved: free, or (`own`) written by the same command.

    Raises FileError for every other name, as `output_folder` does, for one that does not end in `suffix`, and, without
    `parents`, for one in a folder that does not exist.
    """
    path, mode = _resolved(name, option)
    shown = quoted(name)
    if mode is not None and not stat.S_ISREG(mode):
        raise FileError(f"{option} {shown} is {kind_of(mode)} and is left as it is; name a {suffix or 'free'} file")
    if suffix and Path(name).suffix != suffix:
        raise FileError(f"{option} {shown} must be a {suffix} file")
    if not parents and not path.parent.is_dir():
        raise FileError(f"{option} {shown} cannot be made: there is no folder {quoted(path.parent)}")
    if mode is not None and not (own and own[1](path)):
        wanted = f" and is no {own[0]}" if own else ""
        raise FileError(f"{option} {shown} exists{wanted}; name another file, or remove it")
    return path


def _resolved(name: str | Path, option: str) -> tuple[Path, int | None]:
    """Where a name leads, and the mode of what is there; None where it is free."""
    shown = quoted(name)
    if not str(name).strip():
        raise FileError(f"{option} is empty; give a name")
    try:
        path = Path(os.path.realpath(name))
        mode = _mode(path)
        if mode is not None and stat.S_ISLNK(mode):
            raise FileError(f"{option} {shown} is a link that leads round in a circle; name something else")
        above = next((folder for folder in path.parents if _mode(folder) is not None), path)
        if not above.is_dir():
            raise FileError(f"{option} {shown} cannot be made: {quoted(above)} is {kind_of(_mode(above) or 0)}")
        if mode is None and not os.access(above, os.W_OK | os.X_OK):
            raise FileError(f"{option} {shown} cannot be made: {quoted(above)} may not be written to")
    except ValueError as error:  # a zero byte
        if isinstance(error, FileError):
            raise
        raise FileError(f"{option} {shown} is no possible name") from None
    except OSError as error:
        raise FileError(f"{option} {shown}: {error.strerror}") from None
    return path, mode


def _mode(path: Path) -> int | None:
    """The mode of what is there; None where nothing is. Raises OSError for a name that cannot be looked up."""
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def kind_of(mode: int) -> str:
    """What a mode of `stat` is, in words."""
    return KINDS.get(stat.S_IFMT(mode), "something else")
