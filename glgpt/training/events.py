"""The events that a training run reports to its callbacks, and its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glgpt.errors import GlgptError
from glgpt.models.spec import ModelConfig
from glgpt.training.settings import Settings

if TYPE_CHECKING:
    from glgpt.training.plan import Plan  # importing it loads the graphics library


class DivergedError(GlgptError):
    """A loss or gradient that is not finite; the message gives the step, the tensor and the last good checkpoint."""


@dataclass(frozen=True)
class Start:
    """Reported before the first step of a training, once the run folder exists."""

    folder: Path
    config: ModelConfig
    settings: Settings
    parameters: int
    train_tokens: int
    validation_tokens: int
    memory: Mapping[str, int]  # bytes by role
    step: int  # steps already done


@dataclass(frozen=True)
class Step:
    """The results of one step, and those of the validation if one was due."""

    step: int
    loss: float  # nats per token
    grad_norm: float
    lr: float
    tokens_per_s: float  # 0: not measured yet
    seconds_left: float
    validation_loss: float | None = None  # nats per token
    bits_per_byte: float | None = None  # of the validation text
    loss_scale: float | None = None  # in f16, the factor of the loss
    overflows: int = 0  # how often the step was repeated because gradients overflowed f16


@dataclass(frozen=True)
class Trained:
    """The result of a run; losses are the last measured ones."""

    folder: Path
    step: int
    loss: float | None
    validation_loss: float | None
    bits_per_byte: float | None
    validation_step: int | None  # when it was measured; an interrupt may prevent a later one
    tokens: int  # trained on in this session
    seconds: float
    interrupted: bool
    signal: int | None = None  # number of the signal that interrupted the run


@dataclass(frozen=True)
class TrainingCallbacks:
    """Functions that a training run calls at its events; None if not needed."""

    on_plan: Callable[[Plan], object] | None = None  # texture memory and time of a step, before anything is allocated
    on_start: Callable[[Start], object] | None = None  # the run folder exists
    on_step: Callable[[Step], object] | None = None  # after every step
    on_validation: Callable[[int, float, float], object] | None = None  # step, nats per token, bits per byte
    on_sample: Callable[[int, str], object] | None = None  # step, text
    on_save: Callable[[int], object] | None = None  # step of the checkpoint
    on_progress: Callable[[str, int, int], object] | None = None  # long task, done, total

    def task(self, what: str) -> Callable[[int, int], None]:
        """Returns `on_progress` for one task."""

        def show(done: int, total: int) -> None:
            if self.on_progress:
                self.on_progress(what, done, total)

        return show
