"""A session without Flower: its folder, its rounds, and a replacement for Flower that requests rounds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from glgpt.federation import protocol, rules
from glgpt.federation.rounds.rounds import Rounds
from glgpt.federation.rounds.updates import RunOver
from glgpt.federation.session import Checkpoint, Files, Session, recipe_of
from glgpt.training.program import program_digest
from glgpt.training.settings import Settings

TINY = {"n_layer": 1, "n_head": 1, "n_embd": 8, "context": 8, "batch": 2}
TOKENIZER = "ab" * 32


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make_session(**changed: Any) -> Session:
    """Returns a session of a model with 3,000 parameters."""
    # the learning rate is large, so that AdamW could make the changes of 0.5 that tests send
    settings = Settings(tokenizer="bytes", steps=100, lr=1.0, min_lr=0.1, warmup=2, **TINY)
    config = settings.model_config(256)
    fields: dict[str, Any] = {
        "id": "0123456789abcdef", "name": "test", "rounds": 5, "local_steps": 4, "quorum": 2, "round_seconds": 30.0,
        "grace": 4.0, "strategy": "diloco", "outer_lr": 0.7, "outer_momentum": 0.9, "public": False, "dtype": "f32",
        "shards": 8, "members": 8, "digest": program_digest(config, recipe_of(settings)), "tokenizer": TOKENIZER,
        "config": config.fields(), "settings": settings, "train_tokens": 500, "parameters": config.parameter_count,
    }  # fmt: skip
    return Session(**(fields | changed))


def make_files(run: Path, **changed: Any) -> Files:
    """Creates the folder of a session by `make_session`."""
    run.mkdir(exist_ok=True)
    session, files = make_session(**changed), Files(run)
    parameters = np.random.default_rng(0).normal(size=session.parameters).astype(np.float32)
    files.create(session, parameters, np.arange(500, dtype=np.uint16) % 256)
    return files


class Host:
    """The rounds of a session's folder, with shortcuts for tests."""

    def __init__(self, files: Files, clock: Callable[[], float]) -> None:
        self.files, self.session = files, files.session()
        self.invitations = files.invitations()
        self.rounds = Rounds(files, self.invitations, clock)
        self.token = self.invitations.create()
        self.before = files.checkpoint().parameters

    def join(self, name: str = "", **changed: Any) -> Any:
        """Returns a connected member and its `key`."""
        session = self.session
        fields = {"token": self.token, "name": name, "digest": session.digest, "tokenizer": session.tokenizer}
        member, key = self.rounds.members.admit(protocol.Join(**(fields | changed)))
        member.connections = 1
        self.rounds.offer(member)
        return SimpleNamespace(member=member, key=key)

    def begin(self, number: int = 1, task: bytes = b"task", attempt: int = 0) -> bool:
        before, self.rounds.open = self.rounds.open, self.rounds.asked_for(task, number, self.before, attempt)
        self.rounds.keep_open()
        for member in self.rounds.members.values():
            self.rounds.offer(member)
        return self.rounds.open is not before

    def update(self, change: Any = 0.5, **changed: Any) -> tuple[protocol.Update, bytes]:
        """Returns an update that adds `change` to all parameters."""
        after = (self.before + np.float32(change)).astype(np.float32)
        data, scale = protocol.encode(self.session.dtype, after, self.before)
        open_ = self.rounds.open
        fields = {
            "round": open_.number if open_ else 1, "attempt": open_.id if open_ else "none", "tokens": 64, "steps": 4,
            "loss": 2.0, "dtype": self.session.dtype, "scale": scale, "bytes": len(data),
        }  # fmt: skip
        return protocol.Update(**(fields | changed)), data

    def send(self, member: Any, change: Any = 0.5, **changed: Any) -> None:
        """Accepts a complete update as the gateway does."""
        update, data = self.update(change, **changed)
        self.rounds.check(member, update)
        self.rounds.accept(member, update, *self.rounds.decoded(update, data, self.before))


class FakeFlower:
    """Replaces SuperLink and the ServerApp: requests rounds from a gateway and combines the replies."""

    def __init__(self, files: Files) -> None:
        self.files, self.session = files, files.session()
        self.outer = rules.Outer(self.session.outer_lr, self.session.outer_momentum)
        self.asked = 0  # the last round that was requested
        self.runs_over = 0  # number of next replies whose run has already ended
        self.replies: list[np.ndarray] = []
        self.metrics: list[Any] = []

    def connect(self) -> int:
        return 1

    def heartbeat(self) -> None:
        pass

    def close(self) -> None:
        pass

    def pull(self) -> Any:
        held = self.files.checkpoint()
        number = held.round + 1
        if number > self.session.rounds or self.asked == number:
            return None
        self.asked = number
        return SimpleNamespace(message=b"%d" % number, arrays={"parameters": held.parameters}, config={"round": number})

    def answer(self, task: bytes, arrays: Any, metrics: Any) -> None:
        if self.runs_over:
            self.runs_over -= 1
            self.asked -= 1  # the next run requests the same round
            raise RunOver
        held = self.files.checkpoint()
        rows = arrays["updates"]
        self.replies.append(rows)
        self.metrics.append(metrics)
        mean = rules.trimmed_mean(rows) if self.session.public else rules.weighted_mean(rows, metrics["tokens"])
        self.files.save(Checkpoint(int(task), self.outer.step(held.parameters, mean), {}))
        self.files.note({"round": int(task), "step": self.session.first_step(int(task) + 1)})  # as `serve` does


@contextlib.contextmanager
def serving(files: Files, site: Any, limits: Any = None, port: int = 0, **more: Any) -> Iterator[Any]:
    """Serves a gateway on 127.0.0.1 (port 0: a free one). Yields its address and the gateway."""
    import uvicorn

    from glgpt.federation.gateway.routes import application
    from glgpt.federation.gateway.service import Gateway
    from glgpt.federation.uvicorn_settings import configuration
    from glgpt.page.serve import bound_socket

    gateway = Gateway(files, site)
    listener = bound_socket("127.0.0.1", port, "--port", limits)
    server = uvicorn.Server(configuration(application(gateway), listener.connections, ws_ping_interval=None, **more))
    gateway.on_failure = partial(setattr, server, "should_exit", True)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    end = time.monotonic() + 60
    while not server.started:
        assert thread.is_alive() and time.monotonic() < end, "the gateway did not start"
        time.sleep(0.02)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    try:
        yield SimpleNamespace(
            address=address, gateway=gateway, site=site, thread=thread, connections=listener.connections
        )
    finally:
        server.should_exit = server.force_exit = True
        thread.join(30)
