"""Runs glgpt's commands in separate processes and reads their JSON lines while they run."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

TIMEOUT_S = 300.0


class Command:
    """A running `glgpt federate … --json`."""

    def __init__(self, *args: str) -> None:
        command = [sys.executable, "-m", "glgpt", "federate", *args, "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[dict[str, Any]] = []
        self.errors: list[str] = []
        for stream, take in ((self.process.stdout, self._line), (self.process.stderr, self.errors.append)):
            threading.Thread(target=lambda s=stream, t=take: [t(line) for line in s], daemon=True).start()

    def _line(self, text: str) -> None:
        self.lines.append(json.loads(text))

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("event") == name]

    def wait(self, done: Callable[[], Any], seconds: float = TIMEOUT_S) -> Any:
        """Waits until `done` returns a truthy value, and returns it."""
        end = time.monotonic() + seconds
        while not (found := done()):
            ended = self.process.poll()
            if ended is not None:
                time.sleep(0.5)  # wait for its last lines
                if found := done():
                    return found
            assert ended is None and time.monotonic() < end, (ended, self.lines[-3:], self.errors)
            time.sleep(0.1)
        return found


@contextlib.contextmanager
def running() -> Iterator[Callable[..., Command]]:
    """Yields a function that starts commands. On exit, ends the commands that still run."""
    started: list[Command] = []

    def start(*args: str) -> Command:
        started.append(Command(*args))
        return started[-1]

    try:
        yield start
    finally:
        for command in started:
            if command.process.poll() is None:
                command.process.terminate()
        for command in started:
            command.process.wait(60)
