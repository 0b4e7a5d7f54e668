"""Writes the cases of a page's self-test; the page fetches them when a visitor opens `#selftest`."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path

from glgpt.page.documents.fields import ListedFile
from glgpt.page.manifest import compact, version
from glgpt.page.output.destination import write_listed
from glgpt.page.player.packed import line_runs
from glgpt.selftest.report import document
from glgpt.selftest.suite import whole

FILE = "selftest.bin"


def write_selftest(folder: Path) -> ListedFile:
    """Writes the cases to `FILE` in a page's folder; returns the file's size and digest."""
    return write_listed(folder / FILE, _content())


@functools.cache  # the content is the same for all models
def _content() -> bytes:
    found = document()
    lines, shaders = line_runs(whole(found), ())
    del found["sources"]
    text = compact(found | {"glgpt": version(), "lines": lines, "shaders": shaders})
    return gzip.compress(text.encode(), 9, mtime=0)
