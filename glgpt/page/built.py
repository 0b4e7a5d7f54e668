"""Finds the pages built from `viewer/`: in viewer/dist of a checkout, or in the installed package."""

from __future__ import annotations

from pathlib import Path

from glgpt.errors import GlgptError
from glgpt.system.files import data_path


def built_page() -> Path:
    """Returns the folder of the page that `glgpt export` copies. Raises GlgptError if it is not built."""
    return _built("page", "viewer/dist")


def built_dashboard() -> Path:
    """Returns the folder of a federation's dashboard. Raises GlgptError if it is not built."""
    return _built("dashboard", "viewer/dist/dashboard")


def _built(what: str, name: str) -> Path:
    try:
        folder = data_path(name)
        if (folder / "index.html").is_file():
            return folder
    except GlgptError:
        pass
    raise GlgptError(f"the {what} is not built; run `make viewer` in the checkout, or install a wheel of glgpt")
