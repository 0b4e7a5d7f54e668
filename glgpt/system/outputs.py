"""Checks the path to which a command writes (`--out`) before its work begins, in the same way for every command."""

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
# Describes an output: its name in messages, such as "earlier export", and a function that is True for its path
Own = tuple[str, Callable[[Path], bool]]


def output_folder(name: str | Path, own: Own | None = None, option: str = "--out", *, held: Own | None = None) -> Path:
    """Returns the path of an output folder, with links resolved; raises FileError if it must not be written.

    The folder must be missing, empty, or an earlier output of the same command, which `own` recognizes.

    `held` protects folders whose content must stay. It is a pair: the end of the error message, such as "a run; ...",
    and a function that is True for such a folder.

    Raises FileError for an empty or invalid name, a circular link, a path that cannot be created, the current folder or
    a parent of it, a folder that `held` protects, a file, and a folder that is neither empty nor an earlier output.
    """
    path, mode = _resolved(name, option)
    if mode is None:
        return path
    shown = quoted(name)
    if not stat.S_ISDIR(mode):
        raise FileError(f"{option} {shown} is {kind_of(mode)}, which is not replaced; give a folder")
    here = Path.cwd()
    if path == here or path in here.parents:
        raise FileError(f"{option} {shown} is the current folder or a parent of it; give a separate folder")
    try:
        empty = next(path.iterdir(), None) is None
    except OSError as error:
        raise FileError(f"{option} {shown}: {error.strerror}") from None
    if held and held[1](path):
        raise FileError(f"{option} {shown} holds {held[0]}")
    if not empty and not (own and own[1](path)):
        raise FileError(f"{option} {shown} is not empty{_and_not(own)}; give another folder")
    return path


def output_file(
    name: str | Path, suffix: str = "", own: Own | None = None, option: str = "--out", *, parents: bool = False
) -> Path:
    """Returns the path of an output file, with links resolved; raises FileError if it must not be written.

    The file must be missing, or an earlier output of the same command, which `own` recognizes.

    Raises FileError for an empty or invalid name, a name that does not end in `suffix`, a circular link, a path that
    cannot be created, and an existing path that is not an earlier output. Without `parents`, also raises FileError if
    the file's folder does not exist.
    """
    path, mode = _resolved(name, option)
    shown = quoted(name)
    if mode is not None and not stat.S_ISREG(mode):
        raise FileError(f"{option} {shown} is {kind_of(mode)}, which is not replaced; give a {suffix or 'new'} file")
    if suffix and Path(name).suffix.lower() != suffix:
        raise FileError(f"{option} {shown} must be a {suffix} file")
    if not parents and not path.parent.is_dir():
        raise FileError(f"{option} {shown} cannot be created: there is no folder {quoted(path.parent)}")
    if mode is not None and not (own and own[1](path)):
        raise FileError(f"{option} {shown} exists{_and_not(own)}; give another file, or remove it")
    return path


def would_be_deleted(out: str | Path, other: str | Path, what: str) -> FileError:
    """Returns the error for a folder `out` with an earlier output and another file `other`, which would be lost.

    `what` names the earlier output in the folder, such as "an export".
    """
    return FileError(
        f"--out {quoted(out)} holds {quoted(other)}, which is not part of {what} and would be deleted: "
        "move it elsewhere first"
    )


def _and_not(own: Own | None) -> str:
    return f" and is not {'an' if own[0][0] in 'aeiou' else 'a'} {own[0]}" if own else ""


def _resolved(name: str | Path, option: str) -> tuple[Path, int | None]:
    """Returns the path of a name with links resolved, and the mode of the file there (None if it does not exist)."""
    shown = quoted(name)
    if not str(name).strip():
        raise FileError(f"{option} is empty; give a name")
    try:
        path = Path(os.path.realpath(name))
        mode = _mode(path)
        if mode is not None and stat.S_ISLNK(mode):
            raise FileError(f"{option} {shown} is a circular link; give another name")
        above = next((folder for folder in path.parents if _mode(folder) is not None), path)
        if not above.is_dir():
            raise FileError(f"{option} {shown} cannot be created: {quoted(above)} is {kind_of(_mode(above) or 0)}")
        if mode is None and not os.access(above, os.W_OK | os.X_OK):
            raise FileError(f"{option} {shown} cannot be created: {quoted(above)} is not writable")
    except ValueError as error:  # a zero byte
        if isinstance(error, FileError):
            raise
        raise FileError(f"{option} {shown} is not a valid name") from None
    except OSError as error:
        raise FileError(f"{option} {shown}: {error.strerror}") from None
    return path, mode


def _mode(path: Path) -> int | None:
    """Returns the mode of the file at a path; None if nothing is there. Raises OSError for other errors."""
    try:
        return path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def kind_of(mode: int) -> str:
    """Returns in words which kind of file a `stat` mode describes."""
    return KINDS.get(stat.S_IFMT(mode), "something else")
