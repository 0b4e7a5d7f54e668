"""Defines a run's interface to its trainer, the events that a run reports to callbacks, and the result of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.models.spec import ModelConfig
from glgpt.training.settings import Settings

if TYPE_CHECKING:
    from glgpt.training.plan import Plan  # importing it loads the graphics library


class DivergedError(GlgptError):
    """Raised if a loss, a gradient or a parameter is not finite.

    The message has the step, the last good checkpoint and, if it is known, the first tensor affected.
    """


@dataclass(frozen=True)
class Start:
    """Reported before the first step of a new or resumed run, once the run folder exists."""

    folder: Path
    config: ModelConfig
    settings: Settings
    parameters: int
    train_tokens: int
    validation_tokens: int
    memory: Mapping[str, int]  # bytes of textures, by role
    step: int  # number of steps already done


@dataclass(frozen=True)
class StepResult:
    """The result of a step: its number from 1, mean loss in nats per target, norm of all gradients before clipping.

    In f16, also holds the loss scale, and how often the step was repeated because gradients overflowed.
    """

    step: int
    loss: float
    grad_norm: float
    loss_scale: float | None = None
    overflows: int = 0


class RunTrainer(Protocol):
    """The interface of a training run to its trainer. `trainer.Trainer` implements it and documents the methods."""

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""

    @property
    def steps_done(self) -> int:
        """The number of steps taken, including those in flight (submitted, but with results that are not read yet)."""

    @property
    def memory(self) -> Mapping[str, int]:
        """The sizes of all textures in bytes, by role."""

    def __init__(self, model: ModelConfig | str, *, batch: int, context: int, seed: int, **settings: Any) -> None: ...

    @classmethod
    def load(cls, folder: Path, **overrides: Any) -> RunTrainer:
        """Resumes from the files of `save`; the settings in `overrides` replace the stored ones."""

    def submit(self, inputs: NDArray[Any], targets: NDArray[Any], lr: float | None = None) -> list[StepResult]:
        """Takes a step without waiting for its result; returns the results of earlier steps that it has read."""

    def drain(self) -> list[StepResult]:
        """Waits for every step in flight and returns their results."""

    def evaluate(self, inputs: NDArray[Any], targets: NDArray[Any]) -> float:
        """Returns the mean loss of sequences in nats per target."""

    def generate_ids(self, ids: Sequence[int], tokens: int, *, temperature: float, seed: int) -> Iterator[int]:
        """Yields up to `tokens` ids after `ids` with the current parameters."""

    def not_finite(self) -> str | None:
        """Returns the name of the first tensor that contains a NaN or an infinity; None if there is none."""

    def save(self, folder: Path, eos: int | None = None, progress: Callable[[int, int], object] = ...) -> None:
        """Writes a checkpoint and the state from which `load` resumes; calls `progress` with tensors done and total."""

    def close(self) -> None:
        """Releases the trainer's resources."""

    def __enter__(self) -> RunTrainer: ...

    def __exit__(self, *_: object) -> None: ...


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
    loss_scale: float | None = None  # in f16, the factor by which the loss was multiplied
    overflows: int = 0  # number of times the step was repeated because gradients overflowed f16


@dataclass(frozen=True)
class Trained:
    """The result of a run; losses are the last measured ones."""

    folder: Path
    step: int
    loss: float | None
    validation_loss: float | None
    bits_per_byte: float | None
    validation_step: int | None  # step of the last validation; an interrupt may prevent a later one
    tokens: int  # number of tokens trained on since the run was started or last resumed
    seconds: float
    interrupted: bool
    signal: int | None = None  # number of the signal that interrupted the run


@dataclass(frozen=True)
class TrainingCallbacks:
    """Functions that a training run calls at its events; a function that is not needed is None."""

    on_plan: Callable[[Plan], object] | None = None  # texture memory and time of a step, before textures are allocated
    on_start: Callable[[Start], object] | None = None  # the run folder exists
    on_step: Callable[[Step], object] | None = None  # for every step, when its result is read
    on_validation: Callable[[int, float, float], object] | None = None  # step, nats per token, bits per byte
    on_sample: Callable[[int, str], object] | None = None  # step, sampled text
    on_save: Callable[[int], object] | None = None  # step of the checkpoint
    on_progress: Callable[[str, int, int], object] | None = None  # name of a long task, amount done, total

    def task(self, what: str) -> Callable[[int, int], None]:
        """Returns a function that calls `on_progress` for the task `what`, with (amount done, total)."""

        def show(done: int, total: int) -> None:
            if self.on_progress:
                self.on_progress(what, done, total)

        return show
