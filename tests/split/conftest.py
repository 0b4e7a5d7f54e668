"""Provides a fixture that runs split servers in threads of the test's process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.split_serving import running

from glgpt.split.engine import Engine
from glgpt.split.server import Access, StageServer

Serve = Callable[..., StageServer]


@pytest.fixture
def serve() -> Iterator[Callable[..., StageServer]]:
    """Yields a function that starts a split server and returns it. `options` are those of Engine."""
    with contextlib.ExitStack() as stack:

        def start(
            model: Path | None,
            blocks: str | None = None,
            port: int = 0,
            token: str | None = None,
            origins: tuple[str, ...] = (),
            **options: Any,
        ) -> StageServer:
            engine = Engine(model, blocks, **{"device": "software"} | options)
            stack.callback(engine.close)
            return stack.enter_context(running(StageServer(engine, Access(token, origins), port=port)))

        yield start
