"""A Chromium without a window, and folders on a loopback server: for the tests, `measure.py` and `docs/pictures.py`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from glgpt.errors import GlgptError
from glgpt.page.serve import application, serving

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu-sandbox --use-gl=angle --use-angle=gl-egl --ignore-gpu-blocklist "
    "--disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync"
).split()


def find_chromium() -> str:
    """Where Chromium is on this machine. Raises GlgptError where there is none."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        raise GlgptError("no Chromium on this machine: install it (Debian, Ubuntu: apt install chromium)")
    return found


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a folder, served as `glgpt serve` does until the block ends."""
    with serving(application(folder)) as address:
        yield address
