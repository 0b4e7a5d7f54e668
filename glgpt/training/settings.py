"""Defines presets of model sizes, the settings of a run, and the learning rate of each step."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, fields
from typing import Any

from glgpt import models
from glgpt.errors import GlgptError, written
from glgpt.inference.arguments.checks import flag, integer
from glgpt.models.context import DEFAULT_CONTEXT
from glgpt.models.spec import MAX_SIZE, ModelConfig

SCHEDULES = ("cosine", "linear", "constant")
MAX_COUNT = 1 << 53  # maximum number of steps and other counts; a double holds it exactly
MAX_RATE = 3.4e38  # the largest learning rate: shaders take it as a 32-bit float
PRECISIONS = ("f32", "f16")  # number formats of the inputs of matrix products
SHAPE = ("n_layer", "n_head", "n_embd", "context")


@dataclass(frozen=True)
class Preset:
    """A model's size and the settings that suit it."""

    n_layer: int
    n_head: int
    n_embd: int
    context: int
    tokenizer: str
    batch: int
    lr: float
    beta2: float
    steps: int


PRESETS = {
    "nano": Preset(4, 4, 128, 64, "bytes", 12, 3e-3, 0.99, 2000),
    "tiny": Preset(6, 6, 192, 128, "bpe:512", 16, 1e-3, 0.99, 2000),
    "small": Preset(6, 6, 384, 256, "bpe:1024", 32, 1e-3, 0.99, 2000),
    "medium": Preset(8, 8, 512, 512, "bpe:4096", 32, 6e-4, 0.95, 5000),
    "large": Preset(12, 10, 640, 512, "bpe:8192", 32, 6e-4, 0.95, 10000),
    "gpt2": Preset(12, 12, 768, 1024, "gpt2", 16, 6e-4, 0.95, 20000),
}
# Defaults for fine-tuning a checkpoint, whose shape and tokenizer are kept.
FINE_TUNING = {"batch": 4, "lr": 1e-4, "beta2": 0.95, "steps": 500}


@dataclass(frozen=True)
class Settings:
    """All settings that determine a run's result, and how often it evaluates, samples and saves.

    They are stored in the run folder's train.json. Raises GlgptError for a value out of range.
    """

    __pydantic_config__ = {"strict": True, "extra": "forbid"}  # noqa: RUF012, see `records.Record`

    tokenizer: str
    n_layer: int
    n_head: int
    n_embd: int
    context: int
    batch: int
    steps: int
    lr: float
    min_lr: float
    warmup: int
    accumulate: int = 1
    schedule: str = "cosine"
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0  # 0: no clipping
    dropout: float = 0.0
    recompute: bool = False
    precision: str = "f32"
    eval_every: int = 250  # number of steps between validations; 0: never
    sample_every: int = 250  # number of steps between samples; 0: never
    save_every: int = 250  # number of steps between checkpoints; 0: only at the end
    keep: int = 3  # number of last checkpoints whose models are retained
    eval_tokens: int = 1 << 17  # maximum number of tokens of a validation; 0: all of the validation text
    sample_tokens: int = 200
    validation: float = 0.1  # share of the text that is held out for validation
    seed: int = 0
    device: str | int = "auto"
    max_texture_memory: int = 0  # bytes; 0: unlimited

    def __post_init__(self) -> None:
        for name in (*SHAPE, "batch", "accumulate"):
            self._whole(name, 1, MAX_SIZE)
        for name in ("steps", "sample_tokens"):
            self._whole(name, 1)
        for name in (
            "warmup",
            "eval_every",
            "sample_every",
            "save_every",
            "keep",
            "eval_tokens",
            "seed",
            "max_texture_memory",
        ):
            self._whole(name, 0)
        for name in ("min_lr", "weight_decay", "clip"):
            self._within(name, 0, math.inf)
        for name in ("beta1", "beta2", "dropout", "validation"):
            self._within(name, 0, 1)
        self._within("lr", 0, MAX_RATE)
        if not self.lr > 0:
            raise GlgptError(f"lr is {written(self.lr)}; it must be above 0")
        if self.min_lr > self.lr:
            raise GlgptError(f"min_lr {self.min_lr:g} is above lr {self.lr:g}")
        if self.warmup >= self.steps:
            raise GlgptError(f"warmup is {self.warmup} steps; it must be less than the {self.steps} steps of the run")
        if self.schedule not in SCHEDULES:
            raise GlgptError(f"schedule {written(self.schedule)} is not one of {', '.join(SCHEDULES)}")
        if self.precision not in PRECISIONS:
            raise GlgptError(f"precision {written(self.precision)} is not one of {', '.join(PRECISIONS)}")
        if self.seed >= 1 << 32:
            raise GlgptError(f"seed is {self.seed}; it must be below 2^32")
        # Converts 0, 1 and NumPy's values, so that train.json holds true or false, and integers.
        object.__setattr__(self, "recompute", flag("recompute", self.recompute))
        if not isinstance(self.device, str):
            object.__setattr__(self, "device", integer("device", self.device))

    def _whole(self, name: str, least: int, most: int = MAX_COUNT) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise GlgptError(f"{name} is {written(value)}; it must be an integer of at least {least}")
        if value > most:
            raise GlgptError(f"{name} is {written(value)}; it must be at most {most}")

    def _within(self, name: str, least: float, below: float) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not least <= value < below or value > sys.float_info.max:
            most = "" if below == math.inf else f" and below {below}"
            raise GlgptError(f"{name} is {written(value)}; it must be a number of at least {least}{most}")

    def lr_at(self, step: int) -> float:
        """Returns the learning rate of `step` (from 1).

        After the warmup, the rate decays to `min_lr` at the last step, or stays at `lr` if the schedule is constant.
        """
        if step <= self.warmup:
            return self.lr * step / self.warmup
        done = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        share = {"cosine": 0.5 + 0.5 * math.cos(math.pi * done), "linear": 1 - done, "constant": 1.0}
        return self.min_lr + (self.lr - self.min_lr) * share[self.schedule]

    def model_config(self, vocab_size: int) -> ModelConfig:
        """Returns the configuration for fresh weights. Raises GlgptError if n_head does not divide n_embd."""
        return models.family(models.DEFAULT).sized(vocab_size, self.context, self.n_embd, self.n_layer, self.n_head)


def settings_for(preset: str | None, model: ModelConfig | None, given: dict[str, Any]) -> Settings:
    """Returns the settings `given`, completed by the defaults of the preset or, with a `model`, those of fine-tuning.

    Raises GlgptError for an unknown preset or setting, or for a setting that the model determines.
    """
    unknown = given.keys() - {field.name for field in fields(Settings)}
    if unknown:
        raise GlgptError(
            f"{written(min(unknown))} is not a setting; the settings are {', '.join(f.name for f in fields(Settings))}"
        )
    given = {name: value for name, value in given.items() if value is not None}
    if model is None:
        if preset not in PRESETS:
            raise GlgptError(f"preset {written(preset)} is not one of {', '.join(PRESETS)}")
        values = vars(PRESETS[preset]) | given
    else:
        decided = given.keys() & {"tokenizer", "n_layer", "n_head", "n_embd"}
        if decided:
            raise GlgptError(f"{min(decided)} is given by the checkpoint that init names; leave it out")
        shape = {"n_layer": model.n_layer, "n_head": model.n_head, "n_embd": model.n_embd}
        context = min(model.n_positions, DEFAULT_CONTEXT)
        values = FINE_TUNING | {"tokenizer": "the model's", "context": context} | given | shape
        if isinstance(values["context"], int) and values["context"] > model.n_positions:
            raise GlgptError(f"context {values['context']} is beyond the model's {model.n_positions} positions")
    steps, lr = values["steps"], values["lr"]
    values.setdefault("warmup", min(100, steps // 20) if isinstance(steps, int) else 0)
    values.setdefault("min_lr", lr / 10 if isinstance(lr, (int, float)) else 0.0)
    return Settings(**values)
