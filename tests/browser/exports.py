"""Exports pages for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from glgpt.page import programs, training
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions

FEW = ("4x4", "4x8", "8x4-contiguous")  # four and eight draw buffers, and contiguous columns


@contextmanager
def few_recordings(*names: str) -> Iterator[None]:
    """Makes exports have these recordings, by default `FEW`. Only `embedded` has all of them."""

    def few(dtype: Any) -> list[programs.Recording]:
        return [r for r in every(dtype) if r.name in (names or FEW)]

    every = programs.page_recordings
    with pytest.MonkeyPatch.context() as patch:
        for module in (programs, training):
            patch.setattr(module, "page_recordings", few)
        yield


def export_few(model: str | Path | None, folder: Path, options: ExportOptions | None = None, **device: Any) -> None:
    """Exports a page with few recordings."""
    with few_recordings():
        export(model, folder, options or ExportOptions(), **device)
