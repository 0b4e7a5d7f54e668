"""Training a model on a device, one step at a time; losses are read asynchronously, some steps later."""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt import models
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.gl.device import open_device
from glgpt.gl.player import Player
from glgpt.gl.readback import Readback
from glgpt.inference.decoder import Decoder
from glgpt.inference.generation import Run
from glgpt.inference.model import GPT2
from glgpt.inference.sampling import Sampler
from glgpt.models.spec import ModelConfig
from glgpt.program.spec import ROLES
from glgpt.training import state as training_state
from glgpt.training.program import SLOTS, Recipe, checked_rate, checked_seed, training_program
from glgpt.training.textures import STATES, MicroBatches, TrainingTextures, check_finite, checked_micro_batches, ids_of
from glgpt.tuning.choice import DeviceSettings

logger = logging.getLogger(__name__)
MAX_IN_FLIGHT = 3  # steps whose losses may be unread before the trainer waits for the oldest

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class StepResult:
    """A step that was taken: its number from 1, mean loss in nats a target, norm of all gradients before clipping."""

    step: int
    loss: float
    grad_norm: float


@dataclass(frozen=True)
class TrainerSettings:
    """What a Trainer is made with, beside the model and the device; `Recipe` says what most of it means.

    `batch` and `context` are None where each step's arrays decide them. `clip` None is no clipping; `seed` is that of
    fresh parameters and dropout.
    """

    batch: int | None = None
    context: int | None = None
    accumulate: int = 1
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float | None = 1.0
    dropout: float = 0.0
    recompute: bool = False
    seed: int = 0

    def recipe(self, context: int) -> Recipe:
        """What is recorded first: one sequence of `context` tokens where these settings leave the shape open."""
        names = ("accumulate", "betas", "eps", "weight_decay", "dropout", "recompute")
        batch, context = 1 if self.batch is None else self.batch, context if self.context is None else self.context
        return Recipe(batch, context, clip=self.clip or 0.0, **{name: getattr(self, name) for name in names})


class Trainer:
    """Trains a model with AdamW; every tensor, gradient and moment lives in textures.

    `model` is a configuration such as GPT2Config (fresh weights, as its family initialises them), a checkpoint's name
    or folder, or a loaded GPT2, whose checkpoint is read. Settings come as one object or by name, as in
    `Trainer(config, batch=12, lr=1e-3)`; so do those of the device (`DeviceSettings`).

    A step takes `accumulate` micro-batches of `batch` sequences of `context` tokens (None: as many as it is given; its
    program is recorded and compiled when a shape is first met, and again whenever another follows, which is logged as
    a warning: it can take half a minute).
    Its loss is the mean over all targets in all its micro-batches together, except those that are -1, as torch's
    `cross_entropy` has it with `ignore_index=-1`, and its gradient is of that mean; where no target counts, both are
    zero. Raises GlgptError for settings that do not fit the model or the device, TypeError for a model of another kind.
    """

    def __init__(
        self,
        model: ModelConfig | GPT2 | str | Path | None,
        settings: TrainerSettings | None = None,
        **given: Any,
    ) -> None:
        device_settings = DeviceSettings.taken_from(given)
        settings = replace(settings or TrainerSettings(), **given)
        with contextlib.ExitStack() as stack:
            read = None  # a checkpoint's arrays
            if isinstance(model, ModelConfig):
                self.config = model
            else:
                if isinstance(model, GPT2):
                    model = model.path
                if model is not None and not isinstance(model, (str, Path)):
                    kind = type(model).__name__
                    raise TypeError(f"model is a {kind}; pass a config, a loaded GPT2, a folder or a name of the Hub")
                checkpoint = stack.enter_context(Checkpoint.open(model))
                self.config, read = checkpoint.config, checkpoint.read
            self._given, recipe = (settings.batch, settings.context), settings.recipe(self.config.n_positions)
            self.lr, self.seed, self.steps_done = checked_rate(settings.lr), checked_seed(settings.seed), 0
            self._seed = int(np.array(self.seed, np.uint32).view(np.int32))  # its bits, as the scalar holds them
            self.device, self.choice = device_settings.open()
            self._in_flight: deque[tuple[int, MicroBatches]] = deque()  # steps whose losses were not read yet
            self._results: list[StepResult] = []  # results that were read and not yet returned
            self._broken: tuple[int, MicroBatches] | None = None  # the first step that was not finite
            self._open(recipe)
            try:
                if read is None:
                    self.player.play("init", seed=self._seed)
                else:
                    for name in self.config.parameters:
                        self.textures.write(name, read(name))
            except BaseException:
                self.close()
                raise

    def _open(self, recipe: Recipe) -> None:
        program = training_program(self.config, recipe, self.device.limits, self.choice.kernel)
        player = Player(self.device, program, self.choice.options)
        self.recipe, self.player, self.textures = recipe, player, TrainingTextures(self.config, player)
        self.memory = {role: program.nbytes([role]) for role in ROLES}
        self._readback = Readback(player, ("losses", "gradient_norm"), MAX_IN_FLIGHT + 1)
        self._gradients = True  # whether those of the last step are there
        self._prepared = False  # whether the norms are folded as generation wants them
        self._decoder = Decoder(player, self.config.n_positions, self._prepare)

    def _fit(self, batch: int, context: int) -> None:
        """Records the program anew for another shape, where that was left open; what was learnt goes along."""
        shape = self._given[0] or batch, self._given[1] or context
        if shape == (self.recipe.batch, self.recipe.context) or 0 in shape:
            return
        self._results = self.drain()
        state, old = self.textures.state(), self.player
        if self.steps_done:
            logger.warning(
                "compiling a step of %d x %d tokens; pass Trainer a batch and a context to compile one alone, and fill "
                "shorter rows up with targets of -1", *shape
            )  # fmt: skip
        self._open(replace(self.recipe, batch=shape[0], context=shape[1]))
        old.close()
        self.textures.restore(state.__getitem__)
        self._gradients = False  # which were not taken along

    # -- steps --------------------------------------------------------------------------------------------------

    def step(self, inputs: NDArray[Any], targets: NDArray[Any], lr: float | None = None) -> float:
        """Takes a step and waits for its loss, in nats a target; see `submit`."""
        results = [*self.submit(inputs, targets, lr), *self.drain()]
        return results[-1].loss

    def submit(self, inputs: NDArray[Any], targets: NDArray[Any], lr: float | None = None) -> list[StepResult]:
        """Takes a step on ids `[accumulate * batch, context]` without waiting; returns the results that have arrived.

        Where `batch` or `context` was left open, a step of another shape than the last waits for those in flight.

        Raises GlgptError for arrays of another shape or ids outside the vocabulary (a target may be -1).
        """
        lr = self.lr if lr is None else checked_rate(lr)
        x, y = ids_of(inputs, targets)
        if x.ndim == 2:
            self._fit(len(x) // self.recipe.accumulate, x.shape[1])
        micro_batches = self._micro_batches(x, y, self.recipe.accumulate)
        self._backward(self.steps_done + 1, micro_batches)
        self.steps_done += 1
        b1, b2 = self.recipe.betas
        self.player.play("update", lr=lr, unbias1=1 / (1 - b1**self.steps_done), unbias2=1 / (1 - b2**self.steps_done))
        self._decoder.forget()
        self._prepared = False
        arrived, self._results = self._results + ([self._take()] if self._readback.full else []), []
        self._readback.start()
        self._in_flight.append((self.steps_done, micro_batches))
        return arrived

    def _backward(self, step: int, micro_batches: MicroBatches) -> None:
        for i, (x, y) in enumerate(micro_batches):
            self.textures.upload(x, y, train=True)
            scalars = {"pos": 0, "row": i, "step": step, "seed": self._seed}
            self.player.play("backward" if i == 0 else "accumulate", **scalars)
        self._gradients = True

    def drain(self) -> list[StepResult]:
        """Waits for every step in flight and returns their results."""
        results, self._results = self._results + [self._take() for _ in range(len(self._readback))], []
        return results

    def _take(self) -> StepResult:
        losses, norm = self._readback.take()
        total = losses[0, : self.recipe.accumulate, 0].astype(np.float64).sum(axis=0)
        step, micro_batches = self._in_flight.popleft()
        result = StepResult(step, float(total[0] / max(1, total[1])), float(norm[0, 0, 0, 0]))
        if not self._broken and not (math.isfinite(result.loss) and math.isfinite(result.grad_norm)):
            self._broken = step, micro_batches
        return result

    def evaluate(self, inputs: NDArray[Any], targets: NDArray[Any]) -> float:
        """The mean loss of ids `[n, context]`, any n, in nats a target; of no targets, zero. Waits."""
        (x, y), total = ids_of(inputs, targets), np.zeros(2)
        if x.shape != y.shape or x.ndim != 2 or not len(x):
            raise GlgptError(f"inputs {list(x.shape)} and targets {list(y.shape)} are not rows of ids, of one number")
        self._fit(self.recipe.batch, x.shape[1])
        count = -(-len(x) // self.recipe.batch)
        missing = ((0, count * self.recipe.batch - len(x)), (0, 0))
        x, y = np.pad(x, missing), np.pad(y, missing, constant_values=-1)
        for micro_batch in self._micro_batches(x, y, count):
            self.textures.upload(*micro_batch, train=False)
            self.player.play("evaluate", pos=0, row=SLOTS)
            total += self.player.read("losses")[0, SLOTS, 0, :2]
        return float(total[0] / max(1, total[1]))

    def generate_ids(
        self,
        ids: Sequence[int],
        tokens: int,
        *,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> Iterator[int]:
        """Yields up to `tokens` ids after `ids` with the parameters as they are, ending at a full context."""
        ids, c = [int(i) for i in ids], self.config
        if not 0 < len(ids) <= c.n_positions or min(ids) < 0 or max(ids) >= c.vocab_size:
            raise GlgptError(f"a prompt is 1 to {c.n_positions} ids below {c.vocab_size}, not {ids}")
        yield from self._decoder.generate(ids, tokens, Sampler(temperature, top_k, top_p, seed), None, Run())

    def _prepare(self) -> None:
        if not self._prepared:
            self.player.play("prepare")
            self._prepared = True

    def not_finite(self) -> str | None:
        """The first tensor that holds a NaN or an infinity: of the parameters, else of the gradients of the first step
        whose loss or norm was not finite (taken again), in the order the backward pass makes them. None: there is none.
        """
        for name in self.config.parameters:
            if not np.isfinite(self.textures.read(name)).all():
                return name
        if self._broken:
            self._fit(*self._broken[1][0][0].shape)
            self._backward(*self._broken)
            for name in self._backward_order():
                if not np.isfinite(self.textures.read(name, "d.")).all():
                    return f"d.{name}"
        return None

    def _backward_order(self) -> list[str]:  # of parameters, as the backward pass ends their gradients
        last = {t: i for i, p in enumerate(self.player.entry("backward").passes) for t, _ in p.outputs}
        return sorted(self.config.parameters, key=lambda name: last[f"d.{name}"])

    def _micro_batches(self, inputs: NDArray[Any], targets: NDArray[Any], count: int) -> MicroBatches:
        shape = count * self.recipe.batch, self.recipe.context
        return checked_micro_batches(inputs, targets, shape, self.recipe.batch, self.config.vocab_size)

    # -- what it holds ------------------------------------------------------------------------------------------

    def parameters(self) -> Arrays:
        """Every parameter under its Hugging Face name (without the family's prefix), as a checkpoint holds it."""
        return {name: self.textures.read(name) for name in self.config.parameters}

    def set_parameters(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Takes every parameter from `arrays`, named and shaped as `parameters` gives them; the moments stay.

        `steps_done`, which AdamW counts by, stays too. Waits for the steps in flight; their results come with `drain`.
        """
        self._results = self.drain()
        for name in self.config.parameters:
            self.textures.write(name, arrays[name])
        self._decoder.forget()
        self._prepared = False

    def set_moments(self, tensor: Callable[[str], NDArray[Any]], steps_done: int) -> None:
        """Takes the moments that `moments` gave, and the number of steps that AdamW took to them."""
        for name in self.config.parameters:
            for suffix in STATES[1:]:
                self.textures.write(name, tensor(name + suffix), suffix)
        self.steps_done = steps_done

    def moments(self) -> Arrays:
        """What AdamW keeps of every parameter, under its name and a suffix."""
        names = self.config.parameters
        return {name + suffix: self.textures.read(name, "", suffix) for name in names for suffix in STATES[1:]}

    def gradients(self) -> Arrays:
        """The gradients of the last step's mean loss, before clipping, named and shaped as the parameters."""
        if not self._gradients:
            raise GlgptError("arrays of another shape were evaluated since the last step: its gradients are gone")
        counted = self.player.read("losses")[0, : self.recipe.accumulate, 0, 1].sum()
        mean = np.float32(self.recipe.rows / max(1, counted))  # what `update` multiplied them with
        return {name: mean * self.textures.read(name, "d.") for name in self.config.parameters}

    # -- checkpoints --------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, eos: int | None = None) -> None:
        """Writes `config.json` and `model.safetensors` as Hugging Face's GPT-2 has them, and `state.safetensors`.

        `eos` is the tokenizer's end of text, for `config.json`.

        The state is one file, whole at any moment; each file takes its place only when it is complete. Raises OSError
        where the folder cannot be written, and GlgptError, leaving what was there, where a value is not finite.
        """
        moments = self.textures.state()
        arrays = {name: moments.pop(name) for name in self.config.parameters}
        recipe = asdict(self.recipe) | dict(zip(("batch", "context"), self._given, strict=True))
        about = {"config": self.config.fields(), "recipe": recipe, "lr": self.lr, "seed": self.seed}
        about["made"] = {
            "on": self.device.renderer,
            "kernel": self.choice.kernel.name,
            "fetch": self.choice.options.fetch,
        }
        check_finite(arrays | moments)
        training_state.write(Path(folder), self.config, arrays, moments, about | {"step": self.steps_done}, eos)

    @classmethod
    def load(cls, folder: str | Path, **overrides: Any) -> Trainer:
        """Resumes what `save` wrote, bit-identical to never having stopped unless `overrides` change a setting.

        Raises GlgptError for a folder without a state, or a state that is damaged.
        """
        about, tensor = training_state.read(Path(folder))
        options = about.recipe.model_dump() | {"lr": about.lr, "seed": about.seed}
        made = about.made  # another kernel adds up in another order: keep to it on the same device
        if made and made.on == open_device(overrides.get("device", "auto")).renderer:
            options |= {"kernel": made.kernel, "fetch": made.fetch}
        trainer = cls(models.from_fields(about.config), **(options | overrides))
        try:
            trainer.textures.restore(tensor)
        except BaseException:
            trainer.close()
            raise
        trainer.steps_done = about.step
        return trainer

    def close(self) -> None:
        """Releases every GL object. Closing twice is harmless."""
        self.player.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
