"""The command line called in this process, and how it refuses what it is given."""

from __future__ import annotations

import pytest

from glgpt.cli import main

Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, *args: str) -> str:
    """The one line that says why the arguments are refused."""
    try:
        code = main(args)
    except SystemExit as end:
        code = int(str(end.code))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("glgpt") and ": error: " in err and err.count("\n") == 1
    return err
