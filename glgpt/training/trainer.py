"""Trains a model on a device, one step at a time; losses are read asynchronously, several steps later."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glgpt import models
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError, TextureError
from glgpt.gl.device import open_device
from glgpt.gl.player import Player
from glgpt.gl.readback import Readback
from glgpt.inference.arguments.checks import floats, integer, token_ids
from glgpt.inference.arguments.sampling_options import SamplingKeywords, SamplingOptions
from glgpt.inference.decoder import Decoder
from glgpt.inference.generation import GenerationStats
from glgpt.inference.model import LanguageModel
from glgpt.inference.sampling import Sampler
from glgpt.models.context import DEFAULT_CONTEXT
from glgpt.models.spec import ModelConfig
from glgpt.system.memory import available_memory
from glgpt.training import state as training_state
from glgpt.training.events import StepResult
from glgpt.training.loss_scale import LossScale
from glgpt.training.plan import Plan, planned
from glgpt.training.program import SLOTS, Recipe, checked_rate, checked_seed, training_program
from glgpt.training.textures import STATES, TrainingTextures, checked_ids, micro_batches
from glgpt.tuning.kernel_selection import DeviceSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)
MAX_IN_FLIGHT = 3  # maximum number of earlier steps with unread losses when a step is submitted

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class _Step:
    """A step in flight (submitted, with a loss that is not read yet), with everything needed to repeat it."""

    number: int
    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    lr: float
    scale: LossScale | None
    overflows: int = 0


@dataclass(frozen=True)
class TrainerSettings:
    """The settings of a Trainer, except for the model and the device; `Recipe` explains most of them.

    If `batch` or `context` is None, the trainer takes it from the steps: see `Trainer`. A `clip` of None disables
    clipping; `seed` is for fresh parameters and dropout.
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
    precision: str = "f32"
    seed: int = 0
    max_texture_memory: int = 0  # bytes; 0: unlimited

    def recipe(self, context: int) -> Recipe:
        """Returns the first recipe to record: a `batch` of None becomes 1, a `context` of None becomes the argument."""
        names = ("accumulate", "betas", "eps", "weight_decay", "dropout", "recompute", "precision")
        batch, context = 1 if self.batch is None else self.batch, context if self.context is None else self.context
        return Recipe(batch, context, clip=self.clip or 0.0, **{name: getattr(self, name) for name in names})


class Trainer:
    """Trains a model with AdamW; every tensor, gradient and moment is stored in textures.

    `model` is a configuration such as GPT2Config (fresh weights), a checkpoint's name or folder (None: the embedded
    model), or a loaded LanguageModel. The checkpoint of a LanguageModel is read again, and its adapter is added to the
    weights. Settings are given as one object or by name, as in `Trainer(config, batch=12, lr=1e-3)`; settings of the
    device (`DeviceSettings`) are given by name.

    A step runs `accumulate` micro-batches of at most `batch` sequences of at most `context` tokens; smaller arrays are
    padded and masked, which changes no loss and no gradient. The loss is the mean over all targets of all micro-batches
    together. Targets of -1 do not count, as in torch's `cross_entropy` with `ignore_index=-1`. The gradient is that of
    this mean; if no target counts, loss and gradient are zero.

    A program has one shape (batch and context), and compiling it can take half a minute on software GL. If `batch` or
    `context` is None, the trainer takes it from the first step. If later sequences are longer, the trainer recompiles
    the program for the next power of two of their length (at most `n_positions`). If there are more sequences, it
    recompiles for their number. The first compilation is logged as info, later ones are logged as warnings.

    `on_plan` is called with the texture memory and an estimate of a step's time before textures are allocated.
    `on_progress` is called with the name of a long task, the amount done, and the total.

    Raises GlgptError for settings that do not fit the model or the device, and TypeError for another kind of model.
    """

    def __init__(
        self,
        model: ModelConfig | LanguageModel | str | Path | None,
        settings: TrainerSettings | None = None,
        *,
        on_plan: Callable[[Plan], object] | None = None,
        on_progress: Callable[[str, int, int], object] | None = None,
        **given: Any,
    ) -> None:
        device_settings = DeviceSettings.taken_from(given)
        settings = replace(settings or TrainerSettings(), **given)
        self._limit, self._on_plan, self._on_progress = settings.max_texture_memory, on_plan, on_progress
        with contextlib.ExitStack() as stack:
            read = None  # a checkpoint's arrays
            if isinstance(model, ModelConfig):
                self.config = model
            else:
                adapter = None
                if isinstance(model, LanguageModel):
                    adapter, model = model.adapter, model.path
                if model is not None and not isinstance(model, (str, Path)):
                    kind = type(model).__name__
                    raise TypeError(f"model is a {kind}; pass a config, a loaded LanguageModel, a folder or a Hub name")
                checkpoint = stack.enter_context(Checkpoint.open(model, adapter))
                self.config, read = checkpoint.config, checkpoint.read
            longest = min(self.config.n_positions, max(DEFAULT_CONTEXT, settings.context or 0))
            self.config = self.config.with_context(longest)  # for samples; steps use the recipe's context
            recipe = settings.recipe(longest)
            self._given = settings.batch and recipe.batch, settings.context and recipe.context
            self._met = 0, 0  # batch and context of the last program that ran; zeros before the first step
            self._compiled = False
            self.lr, self.seed, self.steps_done = checked_rate(settings.lr), checked_seed(settings.seed), 0
            # Integer scalars of shaders are signed: this one has the same 32 bits as the seed.
            self._seed = int(np.array(self.seed, np.uint32).view(np.int32))
            self.device, self.choice = device_settings.open()
            self._in_flight: deque[_Step] = deque()  # steps with unread losses
            self._results: list[StepResult] = []  # results read but not yet returned
            self._broken: _Step | None = None  # the first step whose loss or norm was not finite
            self.loss_scale = LossScale() if recipe.precision == "f16" else None  # for the next step
            self._open(recipe)
            self._decoder = Decoder(self.player, self.config.context, self._prepare)
            try:
                if read is None:
                    self.player.play("init", seed=self._seed)
                else:
                    loading = self._task("loading the parameters")
                    for i, name in enumerate(names := self.config.parameters, 1):
                        self.textures.write(name, read(name))
                        loading(i, len(names))
            except BaseException:
                self.close()
                raise

    def _task(self, what: str) -> Callable[[int, int], object]:
        """Returns a function that calls `on_progress` for the task `what`, with (amount done, total)."""
        return functools.partial(self._on_progress, what) if self._on_progress else lambda done, total: None

    def _compiling(self, entry: str, done: int, total: int) -> None:
        self._task(f"compiling {entry}")(done, total)

    def _open(self, recipe: Recipe) -> None:
        recording = self._task("recording the training step")
        recording(0, 1)
        program = training_program(self.config, recipe, self.device.limits, self.choice.kernel)
        recording(1, 1)
        plan = planned(program, recipe, self.choice)
        plan.check(self._limit)
        if self.device.software and not self._limit:
            plan.check_memory(available_memory())
        if self._on_plan:
            self._on_plan(plan)
        try:
            player = Player(self.device, program, self.choice.options, on_progress=self._compiling)
        except TextureError as error:
            raise plan.refused(error) from error
        self.recipe, self.player, self.textures = recipe, player, TrainingTextures(self.config, player)
        self.memory = plan.memory
        self._readback = Readback(player, ("losses", "gradient_norm"), MAX_IN_FLIGHT + 1)
        self._gradients: float | None = 1.0  # loss scale of the stored gradients; None: they are lost
        self._prepared = False  # True if `prepare` was played since the parameters changed

    def _fit_step(self, inputs: NDArray[Any]) -> None:
        """Recompiles if a step's ids, of shape `[accumulate * batch, context]`, do not fit the program."""
        self._fit(-(-len(inputs) // self.recipe.accumulate), inputs.shape[1])

    def _fit(self, batch: int, length: int) -> None:
        """Recompiles if micro-batches of shape `[batch, length]` do not fit the program; logs each compilation."""
        shape = self._shape_for(batch, length)
        if shape != (self.recipe.batch, self.recipe.context):
            self._reopen(*shape)
        if shape != self._met or not self._compiled:
            level = logging.WARNING if self._compiled else logging.INFO
            logger.log(
                level, "compiling for %d x %d tokens at a time; smaller steps need no further compilation", *shape
            )
        self._met, self._compiled = shape, True

    def _shape_for(self, batch: int, length: int) -> tuple[int, int]:
        """Returns (batch, context) to record.

        A value from the settings is used as given. Otherwise it is the largest so far, or a larger one if this step
        needs it. If batch * context would exceed the size of a texture, values that were not given are those of this
        step.
        """
        (given_batch, given_context), (most, longest) = self._given, self._met
        context = length
        if longest:  # a power of two, so that few lengths are compiled
            power = min(self.config.n_positions, 1 << (length - 1).bit_length())
            context = longest if length <= longest else max(length, power)
        shape = given_batch or max(batch, most), given_context or context
        if shape[0] * shape[1] > self.device.limits.max_texture_size:
            shape = given_batch or batch, given_context or length
        return shape

    def _reopen(self, batch: int, context: int) -> None:
        """Records the program again for another shape; parameters and moments are preserved."""
        self._results = self.drain()
        state, old = self.textures.state(), self.player
        self._open(replace(self.recipe, batch=batch, context=context))
        self._decoder.attach(self.player)
        old.close()
        self.textures.restore(state.__getitem__)
        self._gradients = None  # not preserved

    # -- steps --------------------------------------------------------------------------------------------------

    def step(self, inputs: NDArray[Any], targets: NDArray[Any], lr: float | None = None) -> float:
        """Takes a step and waits for its loss, in nats per target; see `submit`."""
        results = [*self.submit(inputs, targets, lr), *self.drain()]
        return results[-1].loss

    def submit(self, inputs: NDArray[Any], targets: NDArray[Any], lr: float | None = None) -> list[StepResult]:
        """Takes a step without waiting for its result; returns the results of earlier steps that it has read.

        `inputs` are ids, of a shape up to `[accumulate * batch, context]`; `targets` have the same shape. Smaller
        arrays are padded and masked. For larger arrays, if `batch` or `context` was None in the settings, the trainer
        waits for the steps in flight and recompiles. Raises GlgptError for other arrays that do not fit, and for ids
        outside the vocabulary (a target may be -1).
        """
        lr = self.lr if lr is None else checked_rate(lr)
        x, y = checked_ids(inputs, targets, self.config.vocab_size)
        self._fit_step(x)
        if self._readback.full:
            self._results.append(self._take())
        self._play(_Step(self.steps_done + 1, x, y, lr, self.loss_scale))
        arrived, self._results = self._results, []
        return arrived

    def _play(self, step: _Step) -> None:
        self._backward(step)
        b1, b2 = self.recipe.betas
        unbias = {"unbias1": 1 / (1 - b1**step.number), "unbias2": 1 / (1 - b2**step.number)}
        self._decoder.forget()
        self._prepared = False
        self.player.play("update", lr=step.lr, **unbias)
        self.steps_done = step.number
        self._readback.start()  # after `steps_done`: an interrupt here loses the result, but the step is done
        self._in_flight.append(step)
        if step.scale:
            self.loss_scale = step.scale.after_step()

    def _backward(self, step: _Step) -> None:
        r = self.recipe
        if step.scale:
            self.textures.put("loss_scale", np.array([[step.scale.value, 0, 0, 0]]))
        for i, part in enumerate(micro_batches(step.inputs, step.targets, r.accumulate, r.batch, r.context)):
            self.textures.upload(*part, train=True)
            scalars = {"pos": 0, "row": i, "step": step.number, "seed": self._seed}
            self.player.play("backward" if i == 0 else "accumulate", **scalars)
        self._gradients = step.scale.value if step.scale else 1.0

    def drain(self) -> list[StepResult]:
        """Waits for every step in flight and returns their results."""
        while len(self._readback):
            self._results.append(self._take())  # stays in `_results` if a later `_take` raises
        results, self._results = self._results, []
        return results

    def _take(self) -> StepResult:
        while True:
            losses, norm = self._readback.take()
            total = losses[0, : self.recipe.accumulate, 0].astype(np.float64).sum(axis=0)
            loss, grad_norm = float(total[0] / max(1, total[1])), float(norm[0, 0, 0, 0])
            step = self._in_flight.popleft()
            if not step.scale or math.isfinite(grad_norm):
                break
            if not math.isfinite(loss):  # no loss scale helps; as in f32, the step changes no parameter
                self._play_again(self._release(step.number, step.scale))
                break
            self._take_again(step, step.scale)
        if not self._broken and not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self._broken = step
        scale = step.scale.value if step.scale else None
        return StepResult(step.number, loss, grad_norm, scale, step.overflows)

    def _take_again(self, step: _Step, scale: LossScale) -> None:
        """Re-runs an overflowed step and the no-op steps queued after it."""
        after = self._release(step.number - 1, scale)
        smaller = scale.after_overflow(step.number)
        self._play(replace(step, scale=smaller, overflows=step.overflows + 1))
        self._play_again(after)

    def _release(self, done: int, scale: LossScale) -> list[_Step]:
        """Resets to `done` steps and lets the device take steps again; returns the steps that were in flight."""
        held = list(self._in_flight)
        self._in_flight.clear()
        self._readback.drop()
        self.player.clear("overflowed")
        self.steps_done, self.loss_scale = done, scale
        return held

    def _play_again(self, steps: list[_Step]) -> None:
        for step in steps:
            self._play(replace(step, scale=self.loss_scale, overflows=0))

    def _settle(self) -> None:
        """In f16, waits for the steps in flight, which may have to be repeated.

        The next call of `submit` or `drain` returns their results.
        """
        if self.loss_scale:
            self._results = self.drain()

    def evaluate(self, inputs: NDArray[Any], targets: NDArray[Any]) -> float:
        """Returns the mean loss in nats per target; 0 without targets.

        `inputs` and `targets` are ids of shape `[n, T]`, where T is at most `context` if `context` was given.
        """
        x, y = checked_ids(inputs, targets, self.config.vocab_size)
        self._settle()
        self._fit(1, x.shape[1])
        total, (batch, context) = np.zeros(2), (self.recipe.batch, self.recipe.context)
        for part in micro_batches(x, y, -(-len(x) // batch), batch, context):
            self.textures.upload(*part, train=False)
            self.player.play("evaluate", pos=0, row=SLOTS)
            total += self.player.read("losses")[0, SLOTS, 0, :2]
        return float(total[0] / max(1, total[1]))

    def generate_ids(
        self,
        ids: Sequence[int],
        tokens: int,
        **sampling: Unpack[SamplingKeywords],
    ) -> Iterator[int]:
        """Yields up to `tokens` ids after `ids`, with the current parameters.

        When the text outgrows the context, the model continues from the later part of the text. `sampling` are fields
        of `SamplingOptions`, by default a `temperature` of 0.8 and the `seed` 0. Raises GlgptError if `ids` are empty,
        longer than the context or not in the vocabulary.
        """
        ids, tokens, c = token_ids(ids), integer("tokens", tokens), self.config
        if not 0 < len(ids) <= c.context or min(ids) < 0 or max(ids) >= c.vocab_size:
            raise GlgptError(f"a prompt is 1 to {c.context} ids below {c.vocab_size}, not {ids}")
        options = SamplingOptions.from_keywords({"temperature": 0.8, "seed": 0} | sampling, ("tokens",))
        options.check_vocabulary(c.vocab_size)
        self._settle()
        yield from self._decoder.generate(ids, tokens, Sampler(options), (), GenerationStats(len(ids)))

    def _prepare(self) -> None:
        if not self._prepared:
            self.player.play("prepare")
            self._prepared = True

    def not_finite(self) -> str | None:
        """Returns the name of the first tensor that contains a NaN or an infinity; None if there is none.

        Checks the parameters first. If they are finite, runs the backward pass again for the first step whose loss or
        norm was not finite, and checks the gradients of that step, starting with the last parameter.
        """
        for name in self.config.parameters:
            if not np.isfinite(self.textures.read(name)).all():
                return name
        if self._broken:
            self._fit_step(self._broken.inputs)
            self._backward(self._broken)
            for name in reversed(self.config.parameters):
                if not np.isfinite(self.textures.read(name, "d.")).all():
                    return f"d.{name}"
        return None

    # -- parameters, moments, gradients ---------------------------------------------------------------------------

    def parameters(self) -> Arrays:
        """Returns every parameter under its Hugging Face name (without the family's prefix), as in a checkpoint."""
        self._settle()
        return {name: self.textures.read(name) for name in self.config.parameters}

    def set_parameters(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replaces every parameter by the one in `arrays`, named and shaped as in `parameters`; keeps the moments.

        `steps_done`, which AdamW's bias correction uses, is unchanged too. Waits for the steps in flight; `drain`
        returns their results. Raises GlgptError, and replaces nothing, if a parameter is missing or its shape is wrong.
        """
        new: Arrays = {}
        for name, parameter in self.config.parameters.items():
            if name not in arrays:
                raise GlgptError(f"{name} is missing; give every parameter, as parameters() does")
            new[name] = floats(name, arrays[name])
            if new[name].shape != parameter.shape:
                raise GlgptError(f"{name} has shape {list(new[name].shape)}; it must have {list(parameter.shape)}")
        self._results = self.drain()
        for name, array in new.items():
            self.textures.write(name, array)
        self._decoder.forget()
        self._prepared = False

    def set_moments(self, tensor: Callable[[str], NDArray[Any]], steps_done: int) -> None:
        """Replaces the moments with `tensor(name)` for each name of `moments`, and sets the number of AdamW's steps."""
        steps_done = integer("steps_done", steps_done)
        self._settle()
        for name in self.config.parameters:
            for suffix in STATES[1:]:
                self.textures.write(name, tensor(name + suffix), suffix)
        self.steps_done = steps_done

    def moments(self) -> Arrays:
        """Returns AdamW's moments of every parameter, under the parameter's name with a suffix of `STATES`."""
        self._settle()
        names = self.config.parameters
        return {name + suffix: self.textures.read(name, "", suffix) for name in names for suffix in STATES[1:]}

    def gradients(self) -> Arrays:
        """Returns the gradients of the last step's mean loss, before clipping, named and shaped as the parameters.

        Raises GlgptError if the shaders were compiled again after the last step.
        """
        self._settle()
        if self._gradients is None:
            raise GlgptError(
                "the last step's gradients are gone, since the shaders were compiled again; take a step first"
            )
        counted = self.player.read("losses")[0, : self.recipe.accumulate, 0, 1].sum()
        # The factor by which `update` multiplies gradients before clipping.
        mean = np.float32(self.recipe.rows / max(1, counted) / self._gradients)
        return {name: mean * self.textures.read(name, "d.") for name in self.config.parameters}

    # -- checkpoints --------------------------------------------------------------------------------------------

    def save(
        self,
        folder: str | Path,
        eos: int | None = None,
        progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        """Writes `config.json` and `model.safetensors` in Hugging Face's format, and `state.safetensors`.

        `eos` is the tokenizer's end of text, for `config.json`. `progress` is called with the number of tensors written
        and the number of all tensors; only one tensor at a time is in memory in addition to the textures.

        Each file is replaced only when complete. Raises OSError if the folder cannot be written, and GlgptError,
        leaving the old files, if a value is not finite.
        """
        self._settle()
        arrays, moments = self.textures.mapping(STATES[:1]), self.textures.mapping(STATES[1:])
        recipe = asdict(self.recipe) | dict(zip(("batch", "context"), self._given, strict=True))
        about = {"config": self.config.fields(), "recipe": recipe, "lr": self.lr, "seed": self.seed}
        about["shape"] = self._met if None in self._given and all(self._met) else None
        about["made"] = {
            "on": self.device.renderer,
            "kernel": self.choice.kernel.name,
            "fetch": self.choice.options.fetch,
        }
        if self.loss_scale:
            about["loss_scale"] = asdict(self.loss_scale)
        about["step"] = self.steps_done
        training_state.write(Path(folder), self.config, arrays, moments, about, eos, progress)

    @classmethod
    def load(cls, folder: str | Path, **overrides: Any) -> Trainer:
        """Resumes from the files of `save`; on the same device, bit for bit. `overrides` change settings.

        Raises GlgptError for a folder without a state, or a state that is damaged.
        """
        about, tensor = training_state.read(Path(folder))
        options = about.recipe.model_dump() | {"lr": about.lr, "seed": about.seed}
        made = about.made  # kernels add in different orders: uses the previous one on the same device
        if made and made.on == open_device(overrides.get("device", "auto")).renderer:
            options |= {"kernel": made.kernel, "fetch": made.fetch}
        trainer = cls(models.from_fields(about.config), **(options | overrides))
        try:
            trainer.textures.restore(tensor)
        except BaseException:
            trainer.close()
            raise
        trainer.steps_done = about.step
        if trainer.loss_scale and about.loss_scale:
            trainer.loss_scale = LossScale(about.loss_scale.value, about.loss_scale.steps)
        trainer._met = about.shape or (0, 0)
        return trainer

    def close(self) -> None:
        """Releases every GL object. Closing twice is harmless."""
        self.player.close()

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
