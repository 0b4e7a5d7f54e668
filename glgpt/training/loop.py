"""Runs the loop of a training: takes steps, logs them, evaluates, samples, saves, and stops on a signal.

A step is in flight from its submission to the device until its results are read.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np

from glgpt.errors import GlgptError
from glgpt.plots.loss import loss_curve
from glgpt.system.signal_log import first
from glgpt.system.signals import NUMBERS, Unwinding, handled
from glgpt.text.dataset import Data, batch, fixed_windows, starts, windows
from glgpt.text.tokenizer import Tokenizer
from glgpt.training.events import DivergedError, RunTrainer, Step, StepResult, Trained, TrainingCallbacks
from glgpt.training.loss_scale import OverflowedError
from glgpt.training.run_folder import RunFolder
from glgpt.training.settings import Settings

RECENT = 50  # maximum number of recent results over which tokens/s is measured


@contextlib.contextmanager
def stoppable() -> Iterator[list[int]]:
    """Yields a list that receives the number of the first SIGINT, SIGTERM or SIGHUP.

    A second signal raises the exception that the first one would raise without this context manager.
    """
    caught: list[int] = []
    second = Unwinding()

    def on_signal(number: int, frame: FrameType | None) -> None:
        number = first(number, NUMBERS)
        if caught:
            second.handle(caught[0], frame)
        else:
            caught.append(number)

    with handled(on_signal, default=True):
        try:
            yield caught
        finally:
            second.end()


class Loop:
    """Trains from the first step that is not done yet to step `settings.steps`."""

    def __init__(
        self,
        trainer: RunTrainer,
        data: Data,
        tokenizer: Tokenizer,
        settings: Settings,
        run: RunFolder,
        callbacks: TrainingCallbacks,
    ) -> None:
        self.trainer, self.data, self.tokenizer = trainer, data, tokenizer
        self.settings, self.run, self.callbacks = settings, run, callbacks
        self.first = self.saved = trainer.steps_done
        self.last: Step | None = None
        self.validation: tuple[float, float] | None = None  # nats per token, bits per byte
        self.validated: int | None = None  # the step of the last validation
        self._stop: Sequence[int] = ()
        self._rows = settings.batch * settings.accumulate
        self._begun = time.perf_counter()
        self._other = 0.0  # seconds not spent on steps
        self._rate = 0.0  # steps per second
        # (step, seconds) of each recent result that arrived while later steps were in flight
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT)
        self._idle: tuple[int, float] | None = None  # (step, seconds) at the last `_drain`
        self._lengths: np.ndarray | None = None

    def go(self) -> Trained:
        """Trains to the end, or until the first interrupt; saves a checkpoint in both cases."""
        with stoppable() as self._stop:
            with self._untimed():
                self._catch_up()
            step = self.first
            while step < self.settings.steps and not (self._stop and step > self.first):
                step += 1
                self._step(step)
            if step > self.saved:
                self._take(self._drain())
                self._save(step)
        tokens = (step - self.first) * self._rows * self.settings.context
        nats, bits = self.validation or (None, None)
        return Trained(
            folder=self.run.path,
            step=step,
            loss=self.last.loss if self.last else None,
            validation_loss=nats,
            bits_per_byte=bits,
            validation_step=self.validated,
            tokens=tokens,
            seconds=time.perf_counter() - self._begun,
            interrupted=bool(self._stop) and step < self.settings.steps,
            signal=self._stop[0] if self._stop and step < self.settings.steps else None,
        )

    def keep(self, step: int, loss: float | None) -> dict[str, Any]:
        """Evaluates, samples, logs and saves parameters that were trained outside this loop, up to `step`.

        `loss` is the last training loss. Returns the line of metrics.jsonl with the sample added. Raises DivergedError
        if a parameter is not finite.
        """
        line: dict[str, Any] = {"step": step, "lr": self.settings.lr_at(step)} | (
            {} if loss is None else {"loss": loss}
        )
        line |= self._validated() if self._evaluate(step) else {}
        self._note(line)
        self._sample(step)
        self._save(step)
        file = self.run.sample_file(step)
        return line | {"sample": file.read_text("utf-8") if file.exists() else ""}

    def _step(self, step: int) -> None:
        s = self.settings
        inputs, targets = batch(self.data.train, s.seed, step, self._rows, s.context)
        first = step == self.first + 1
        if first:
            self.callbacks.task("taking the first step")(0, 1)
        results = self._asked(lambda: self.trainer.submit(inputs, targets, s.lr_at(step)))
        due = any(self._due(every, step) for every in (s.eval_every, s.sample_every, s.save_every or s.steps))
        if not due and not first:  # the first step compiles shaders: the code below waits for it
            for result in results:
                self._recent.append((result.step, self._busy()))
            if len(self._recent) > 1:
                self._rate = _slope(self._recent[0], self._recent[-1])
            self._take(results)
            return
        self._take(results)
        results = self._drain()
        if first:
            self.callbacks.task("taking the first step")(1, 1)
        self._take(results[:-1])
        with self._untimed():
            evaluated = self._due(s.eval_every, step) and self._evaluate(step)
        self._take(results[-1:], evaluated)
        with self._untimed():
            if self._due(s.sample_every, step):
                self._sample(step)
            if self._due(s.save_every or s.steps, step):
                self._save(step)

    def _drain(self) -> list[StepResult]:
        """Waits for the steps in flight and returns their results.

        Measures the speed over all steps since the previous call, because these results arrive together.
        """
        results = self._asked(self.trainer.drain)
        now = self.trainer.steps_done, self._busy()
        self._rate = _slope(self._idle, now) if self._idle else 0.0
        self._idle = now
        self._recent.clear()
        return results

    def _due(self, every: int, step: int) -> bool:
        return bool(every) and (step % every == 0 or step == self.settings.steps)

    def _catch_up(self) -> None:
        """Runs the validation before the first step, and the validation or sample that the last interrupt prevented."""
        lines, s = self.run.lines(), self.settings
        last = next((line for line in reversed(lines) if line.get("validation_loss") is not None), None)
        if last:
            self.validation = last["validation_loss"], last["validation_bits_per_byte"]
            self.validated = last["step"]
        if (
            self._due(s.eval_every, self.first)
            and not (last and last["step"] == self.first)
            and self._evaluate(self.first)
        ):
            self.run.amend(self.first, self._validated())
        if self.first and self._due(s.sample_every, self.first) and not self.run.sample_file(self.first).exists():
            self._sample(self.first)

    @contextlib.contextmanager
    def _untimed(self) -> Iterator[None]:
        """Excludes the time spent in the block from tokens/s."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._other += time.perf_counter() - start

    def _busy(self) -> float:
        return time.perf_counter() - self._begun - self._other

    def _take(self, results: Sequence[StepResult], evaluated: bool = False) -> None:
        """Logs steps whose results have arrived; with `evaluated`, logs the last validation's results with them.

        Raises DivergedError if a loss or a norm of gradients is not finite.
        """
        for result in results:
            nats, bits = self.validation if evaluated and self.validation else (None, None)
            self.last = Step(
                result.step,
                result.loss,
                result.grad_norm,
                self.settings.lr_at(result.step),
                self._rate * self._rows * self.settings.context,
                (time.perf_counter() - self._begun) / (result.step - self.first) * (self.settings.steps - result.step),
                nats,
                bits,
                result.loss_scale,
                result.overflows,
            )
            line = {"step": result.step, "loss": result.loss, "grad_norm": result.grad_norm, "lr": self.last.lr}
            line |= {"tokens_per_s": round(self.last.tokens_per_s, 1)} | (self._validated() if nats else {})
            self._note(line | _scaled(result))
            if self.callbacks.on_step:
                self.callbacks.on_step(self.last)
            if not (math.isfinite(result.loss) and math.isfinite(result.grad_norm)):
                raise self._diverged(result)

    def _validated(self) -> dict[str, float]:
        nats, bits = self.validation or (math.nan, math.nan)
        return {"validation_loss": nats, "validation_bits_per_byte": bits}

    def _note(self, line: dict[str, Any]) -> None:
        self.run.note({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()})

    def _asked(self, ask: Callable[[], list[StepResult]]) -> list[StepResult]:
        """Calls `ask` for the trainer's results. Raises DivergedError if gradients overflow at every loss scale."""
        try:
            return ask()
        except OverflowedError as error:
            self._take(self.trainer.drain())  # results of earlier steps
            raise self._broken(error.step, error.what) from None

    def _diverged(self, result: StepResult) -> DivergedError:
        with contextlib.suppress(OverflowedError):  # in a later step, which does not matter any more
            self.trainer.drain()
        tensor = self.trainer.not_finite()
        what = f"the loss is {result.loss:g} and the gradient's norm {result.grad_norm:g}"
        return self._broken(result.step, what + (f"; the first tensor affected is {tensor}" if tensor else ""))

    def _broken(self, step: int, what: str) -> DivergedError:
        self._picture()
        return DivergedError(
            f"step {step}: {what}; the last good checkpoint is step {self.saved} in {self.run.path}: "
            "resume it with a lower --lr or --clip"
            + (", or train with --precision f32" if self.settings.precision != "f32" else "")
        )

    def _evaluate(self, step: int) -> bool:
        """Measures the loss on fixed windows (sequences of `context` tokens) of the validation text.

        Returns False without a validation text, or after an interrupt.
        """
        s, ids = self.settings, self.data.validation
        if not len(ids):
            return False
        first = fixed_windows(ids, s.context, s.eval_tokens)
        if self._lengths is None:
            self._lengths = np.array([len(self.tokenizer.token_bytes(i)) for i in range(self.tokenizer.vocab_size)])
        nats, size = 0.0, 0
        for at in range(0, len(first), s.batch):
            inputs, targets = windows(ids, first[at : at + s.batch], s.context)
            nats += self.trainer.evaluate(inputs, targets) * targets.size
            size += int(self._lengths[targets].sum())
            self.callbacks.task("validating")(min(at + s.batch, len(first)), len(first))
            if self._stop:
                return False
        mean = nats / (len(first) * s.context)
        self.validation, self.validated = (mean, nats / math.log(2) / max(1, size)), step
        if self.callbacks.on_validation:
            self.callbacks.on_validation(step, *self.validation)
        return True

    def _sample(self, step: int) -> None:
        """Samples a text from the current model; whenever the context is full, continues from its later half."""
        s, ids = self.settings, list(self._prompt())
        prompt = len(ids)
        while len(ids) - prompt < s.sample_tokens and not self._stop:
            window = ids[-max(1, s.context // 2) :]
            wanted = min(s.sample_tokens - (len(ids) - prompt), s.context - len(window))
            seed = int(starts(s.seed, step, 1, 1 << 31)[0]) + len(ids)
            before = len(ids)
            for token in self.trainer.generate_ids(window, max(1, wanted), temperature=0.8, seed=seed):
                ids.append(int(token))
                if self._stop:
                    break
            if len(ids) == before:
                break
        if self._stop:
            return
        text = self.tokenizer.decode(ids[prompt:])
        self.run.sample(step, text)
        if self.callbacks.on_sample:
            self.callbacks.on_sample(step, text)

    def _prompt(self) -> list[int]:
        """Returns the ids of a line end, or the training text's first id if the vocabulary has no line end."""
        try:
            return self.tokenizer.encode("\n")
        except GlgptError:
            return [int(self.data.train[0])]

    def _save(self, step: int) -> None:
        self.run.sync()
        try:
            self.trainer.save(self.run.path, self.tokenizer.eos, self.callbacks.task("saving a checkpoint"))
        except GlgptError as error:  # a parameter is not finite, although the loss was finite
            raise self._broken(step, str(error)) from None
        self.saved = step
        self.run.keep(step, self.settings.keep)
        self._picture()
        if self.callbacks.on_save:
            self.callbacks.on_save(step)

    def _picture(self) -> None:
        lines = self.run.lines()

        def curve(key: str) -> np.ndarray:
            return np.array([(line["step"], line[key]) for line in lines if line.get(key) is not None]).reshape(-1, 2)

        picture = self.run.path / "loss.png"
        loss_curve(curve("loss"), curve("validation_loss"), self.run.path.name, picture)


def _scaled(result: StepResult) -> dict[str, Any]:
    """Returns the fields that f16 adds to a step's line: its loss scale and its number of overflows."""
    if result.loss_scale is None:
        return {}
    return {"loss_scale": result.loss_scale} | ({"overflows": result.overflows} if result.overflows else {})


def _slope(a: tuple[int, float], b: tuple[int, float]) -> float:
    """Returns the steps per second between two (step, seconds) points; 0 if no time passed."""
    return (b[0] - a[0]) / (b[1] - a[1]) if b[1] > a[1] else 0.0
