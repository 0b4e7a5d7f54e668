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
    of another user, who could replace what the driver loads. So all folders up to the root must belong to root.
    Environment variables that are set decide instead.
    """
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or ENABLED in os.environ or FOLDER in os.environ:
        return
    folder = cache_path() / "shaders"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve(strict=True)
        if not all(_is_protected(each) for each in (folder, *folder.parents)):
            return
    except OSError:  # such as a read-only file system
        return
    os.environ |= {ENABLED: "1", FOLDER: str(folder)}


def _is_protected(folder: Path) -> bool:
    """True if only root can replace the files in a folder, or those of root, as in /tmp."""
    about = folder.stat()
    shared = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return about.st_uid == 0 and (not shared or bool(about.st_mode & stat.S_ISVTX))
