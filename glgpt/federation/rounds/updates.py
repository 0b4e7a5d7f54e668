"""Defines an open round, its accepted updates, and a site's reply to Flower. A site is a gateway with its clients."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from glgpt.errors import GlgptError
from glgpt.federation import rules
from glgpt.federation.protocol import Vector


class Rejected(Exception):  # noqa: N818
    """Raised to reject an update. A `stale` update, such as one for another round, does not count as a strike."""

    def __init__(self, why: str, stale: bool = False) -> None:
        super().__init__(why)
        self.stale = stale


class RunOver(Exception):  # noqa: N818
    """Raised if Flower's run ended before the reply. The next run requests the round again."""


@dataclass(frozen=True)
class Spooled:
    """An accepted update. The file `file` in the spool folder holds the parameters."""

    member: int
    tokens: int
    steps: int
    loss: float
    norm: float
    file: Path

    def after(self, first: int = 0, count: int = -1) -> Vector:
        """Returns the client's parameters after its steps: `count` values (-1: all) from value `first` on."""
        return np.fromfile(self.file, "<f4", count, offset=4 * first).astype(np.float32, copy=False)

    def line(self) -> str:
        """Returns the JSON line about this update in the round's list of updates."""
        return json.dumps(asdict(self) | {"file": self.file.name})

    def check(self, bounds: rules.Bounds, limits: rules.NormLimits, count: int) -> None:
        """Raises GlgptError or OSError if a limit is exceeded, or the file does not hold `count` finite values."""
        rules.check_claims(self, bounds)
        limits.check(self.norm, self.steps)
        values = self.after()
        if len(values) != count or not np.isfinite(values).all():
            raise GlgptError(f"{self.file.name} does not hold {count} finite values")


SPOOLED = TypeAdapter(Spooled)  # validates what `Spooled.line` wrote


@dataclass
class OpenRound:
    """The round that Flower requested last. Clients train it until it is closed; then the site replies to Flower."""

    number: int
    id: str  # see `session.weights_id`
    parameters: Vector  # before the round
    limits: rules.NormLimits
    task: bytes  # the message with which Flower requested the round; empty after it was answered
    opened: float  # the times in this class are by the clock of `rounds.Rounds`
    deadline: float
    quorum_at: float | None = None  # when the round reached its quorum; None: not yet
    closed: bool = False
    settled: bool = False  # True if `closed` is recorded on disk; the site does not reply before
    wrapped_up: bool = False  # True if clients were requested to send their results so far (message `wrap_up`)
    updates: dict[int, Spooled] = field(default_factory=dict)
    attempt: int = 0  # number of times that all gateways together missed the quorum
    had: int = 0  # number of updates at the end of the previous attempt


@dataclass(frozen=True)
class Reply:
    """A site's reply to a round, with `updates` [k, n].

    Each of the k rows holds the n parameters of one client, or a single row combines the parameters of all clients.
    """

    task: bytes
    updates: NDArray[np.float32]
    metrics: dict[str, list[float] | int]
