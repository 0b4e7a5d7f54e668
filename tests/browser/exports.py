"""Exports pages for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glgpt.page import programs, training
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions


def export_few(model: str | Path | None, folder: Path, options: ExportOptions | None = None, **device: Any) -> None:
    """Exports a page with three recordings: four and eight draw buffers, and contiguous columns.

    `exported` and the player's pages have all of them.
    """

    def few(dtype: Any) -> list[programs.Recording]:
        return [r for r in every(dtype) if r.name in ("4x4", "4x8", "8x4-contiguous")]

    every = programs.page_recordings
    with pytest.MonkeyPatch.context() as patch:
        for module in (programs, training):
            patch.setattr(module, "page_recordings", few)
        export(model, folder, options or ExportOptions(), **device)
