"""Calls the command line in this process, and checks how it rejects arguments."""

from __future__ import annotations

import pytest

from glgpt.cli import main

Capture = pytest.CaptureFixture[str]


def refused(capsys: Capture, *args: str) -> str:
    """Returns the one-line error with which the arguments are rejected."""
    try:
        code = main(args)
    except SystemExit as end:
        code = int(str(end.code))
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("glgpt") and ": error: " in err and err.count("\n") == 1
    return err
