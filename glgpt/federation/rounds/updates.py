"""Defines an open round, its accepted updates, and the reply of a site."""

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
    """Raised to reject an update. If it is `stale`, for another round, it does not count against the member."""

    def __init__(self, why: str, stale: bool = False) -> None:
        super().__init__(why)
        self.stale = stale


class RunOver(Exception):  # noqa: N818
    """Raised if Flower's run has ended: its round's result is not needed, and the next run requests it again."""


@dataclass(frozen=True)
class Spooled:
    """An accepted update, stored in the spool folder."""

    member: int
    tokens: int
    steps: int
    loss: float
    norm: float
    file: Path

    def after(self) -> Vector:
        """Returns the client's parameters after its steps."""
        return np.fromfile(self.file, "<f4").astype(np.float32, copy=False)

    def line(self) -> str:
        """Returns the line of the round's list of updates."""
        return json.dumps(asdict(self) | {"file": self.file.name}) + "\n"

    def check(self, bounds: rules.Bounds, limits: rules.NormLimits, count: int) -> None:
        """Raises GlgptError or OSError if the update cannot be combined with others of `count` values."""
        rules.check_claims(self, bounds)
        limits.check(self.norm, self.steps)
        values = self.after()
        if len(values) != count or not np.isfinite(values).all():
            raise GlgptError(f"{self.file.name} does not hold {count} finite values")


SPOOLED = TypeAdapter(Spooled)  # reads a line


@dataclass
class OpenRound:
    """A round that is being trained, or a closed one whose reply Flower has not received yet."""

    number: int
    id: str
    parameters: Vector
    limits: rules.NormLimits
    task: bytes
    opened: float
    deadline: float
    quorum_at: float | None = None
    closed: bool = False
    settled: bool = False  # closed on disk: it can be answered, and a restart does not reopen it
    wrapped_up: bool = False
    updates: dict[int, Spooled] = field(default_factory=dict)
    attempt: int = 0  # number of times all gateways together missed the quorum
    had: int = 0  # number of updates at the end of the previous attempt


@dataclass(frozen=True)
class Reply:
    """A site's reply to a round: row i of `updates` [k, n] holds client i's parameters after the round."""

    task: bytes
    updates: NDArray[np.float32]
    metrics: dict[str, list[float] | int]
