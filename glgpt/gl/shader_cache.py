"""Lets NVIDIA's driver store compiled shaders on disk for root, whose shaders it does not store by default."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from glgpt.system.files import cache_path

ENABLED, FOLDER = "__GL_SHADER_DISK_CACHE", "__GL_SHADER_DISK_CACHE_PATH"  # environment variables of the driver


def enable_shader_cache() -> None:
    """Makes the driver cache root's shaders in glgpt's cache folder. Call it before the driver is loaded.

    By default the driver caches those of other users only, since a program that runs as root may have the home folder
    of another user, who could replace what the driver loads. So the folder and all its parents must belong to root,
    before anything is created in them. Environment variables that are set decide instead.
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
    """True if only root can add files to a folder and replace its parents, as far as they exist."""
    return all(_is_roots(each, parent=each != folder) for each in (folder, *folder.parents) if each.exists())


def _is_roots(folder: Path, parent: bool) -> bool:
    """True if only root can write to a folder; all may write to a parent that is sticky, such as /tmp."""
    about = folder.stat()
    shared = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return about.st_uid == 0 and (not shared or (parent and bool(about.st_mode & stat.S_ISVTX)))
