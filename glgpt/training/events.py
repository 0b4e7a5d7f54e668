"""What a run tells of itself, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glgpt.errors import GlgptError
from glgpt.models.spec import ModelConfig
from glgpt.training.settings import Settings

if TYPE_CHECKING:
    from glgpt.training.plan import Plan  # which imports the graphics library


class DivergedError(GlgptError):
    """A loss or gradient that is not finite: the message says at which step, where, and what checkpoint is good."""


@dataclass(frozen=True)
class Start:
    """Announces a training before its first step, once the run folder exists."""

    folder: Path
    config: ModelConfig
    settings: Settings
    parameters: int
    train_tokens: int
    validation_tokens: int
    memory: Mapping[str, int]  # bytes by role
    step: int  # steps done before


@dataclass(frozen=True)
class Step:
    """One step's figures; the validation's where one was due."""

    step: int
    loss: float  # nats a token, as the next
    grad_norm: float
    lr: float
    tokens_per_s: float  # 0 where it is not known yet
    seconds_left: float
    validation_loss: float | None = None
    bits_per_byte: float | None = None  # of the validation text
    loss_scale: float | None = None  # in f16, what the loss was multiplied with
    overflows: int = 0  # how often the step was taken before its gradients fitted halves


@dataclass(frozen=True)
class Trained:
    """How a run ended; losses are the last ones known."""

    folder: Path
    step: int
    loss: float | None
    validation_loss: float | None
    bits_per_byte: float | None
    validation_step: int | None  # after which it was measured: an interrupt may have kept a later one away
    tokens: int  # seen in this session
    seconds: float
    interrupted: bool
    signal: int | None = None  # that interrupted it


@dataclass(frozen=True)
class Hooks:
    """What is called during a run; None is not."""

    on_plan: Callable[[Plan], object] | None = None
    on_start: Callable[[Start], object] | None = None
    on_step: Callable[[Step], object] | None = None
    on_validation: Callable[[int, float, float], object] | None = None  # step, nats a token, bits a byte
    on_sample: Callable[[int, str], object] | None = None  # step, text
    on_save: Callable[[int], object] | None = None  # step
    on_progress: Callable[[str, int, int], object] | None = None  # what, done, total

    def task(self, what: str) -> Callable[[int, int], None]:
        """`on_progress` for one task."""

        def show(done: int, total: int) -> None:
            if self.on_progress:
                self.on_progress(what, done, total)

        return show
