"""Provides fixtures based on `fake_session`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_session import Clock, FakeFlower, Host, make_files, serving

from glgpt.federation.session import Files


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def host(tmp_path: Path, clock: Clock) -> Callable[..., Host]:
    """Returns a function that opens a session with given terms. Further calls open it again, as after a crash."""

    def opened(**changed: Any) -> Host:
        files = Files(tmp_path / "run")
        return Host(files if files.exists else make_files(tmp_path / "run", **changed), clock)

    return opened


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Yields a function that starts a gateway with a fake Flower, for a session with given terms.

    Further calls serve the same session, as after a restart.
    """
    with contextlib.ExitStack() as stack:

        def start(limits: Any = None, **terms: Any) -> Any:
            files = Files(tmp_path / "run")
            if not files.exists:
                files = make_files(tmp_path / "run", **terms)
                (files.run / "vocab.json").write_text("{}")
            return stack.enter_context(serving(files, FakeFlower(files), limits))

        yield start
