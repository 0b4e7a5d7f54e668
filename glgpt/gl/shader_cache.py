"""Makes NVIDIA's driver store compiled shaders on disk for root; by default, the driver stores none for root."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from glgpt.system.files import cache_path

ENABLED, FOLDER = "__GL_SHADER_DISK_CACHE", "__GL_SHADER_DISK_CACHE_PATH"  # environment variables of the driver


def enable_shader_cache() -> None:
    """Makes NVIDIA's driver store root's compiled shaders in glgpt's cache folder. Call it before the driver is loaded.

    By default, the driver caches no shaders for root: the home folder of a program that runs as root may belong to
    another user, who could replace the files that the driver loads. This function therefore changes nothing if another
    user can write to the cache folder or replace one of its parents. It also changes nothing for users other than root,
    and if the environment variable `ENABLED` or `FOLDER` is set.
    """
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or ENABLED in os.environ or FOLDER in os.environ:
        return
    try:
        folder = (cache_path() / "shaders").resolve()
        if not _is_protected(folder):
            return
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_protected(folder):
            return
    except OSError:  # such as a read-only file system
        return
    os.environ |= {ENABLED: "1", FOLDER: str(folder)}


def _is_protected(folder: Path) -> bool:
    """True if only root can add files to `folder` and replace its parents. Folders that do not exist are ignored."""
    return all(_is_roots(each, parent=each != folder) for each in (folder, *folder.parents) if each.exists())


def _is_roots(folder: Path, parent: bool) -> bool:
    """True if root owns the folder and only root can write to it.

    Also True for a `parent` of root's to which others can write, if it has the sticky bit, as /tmp has.
    """
    about = folder.stat()
    shared = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return about.st_uid == 0 and (not shared or (parent and bool(about.st_mode & stat.S_ISVTX)))
