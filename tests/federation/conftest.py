"""Fixtures of `fake_session`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_session import Clock, Host, make_files

from glgpt.federation.session import Files


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def host(tmp_path: Path, clock: Clock) -> Callable[..., Host]:
    """host(**terms): a session in a folder; called again it opens the same folder, as after a crash."""

    def opened(**changed: Any) -> Host:
        files = Files(tmp_path / "run")
        return Host(files if files.exists else make_files(tmp_path / "run", **changed), clock)

    return opened
