"""Exports pages for tests, with few recordings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glgpt.page import export as page_export
from glgpt.page import programs, training
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions

# Recordings from which a test's page chooses. The first one has strided columns, like training programs, and stores
# weights without panels, like the page's files of weights.
USUAL = ("4x8", "8x4-contiguous")
FEW = ("4x4", *USUAL)  # also for devices with four draw buffers


@contextmanager
def few_recordings(*names: str) -> Iterator[None]:
    """Limits exports to the recordings `names`, by default `FEW`."""

    def few(dtype: Any) -> list[programs.Recording]:
        return [r for r in every(dtype) if r.name in (names or FEW)]

    every = programs.page_recordings
    with pytest.MonkeyPatch.context() as patch:
        for module in (programs, training):
            patch.setattr(module, "page_recordings", few)
        yield


def export_few(
    model: str | Path | None,
    folder: Path,
    options: ExportOptions | None = None,
    recordings: tuple[str, ...] = USUAL,
    **device: Any,
) -> None:
    """Exports a page with few recordings, and without recorded.json (a text to show before the model is loaded)."""
    with few_recordings(*recordings), pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_export, "recorded_json", lambda *_: None)
        export(model, folder, options or ExportOptions(), **device)
