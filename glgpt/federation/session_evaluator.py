"""Writes the run folder of a session, with the files of `glgpt train`: metrics, samples, checkpoints, loss curve."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from glgpt.errors import FileError, GlgptError, quoted
from glgpt.federation import protocol
from glgpt.federation.protocol import Vector
from glgpt.federation.session import Files
from glgpt.text.dataset import Data, load_data
from glgpt.text.files import Text
from glgpt.text.tokenizer import load_tokenizer
from glgpt.text.tokenizer_training import identity
from glgpt.training.events import TrainingCallbacks
from glgpt.training.loop import Loop
from glgpt.training.run_folder import RunFolder

if TYPE_CHECKING:
    from glgpt.training.trainer import Trainer


class SessionEvaluator:
    """Evaluates the shared model on this machine after each round. Opens `device` for the first evaluation."""

    def __init__(self, files: Files, device: str | int) -> None:
        self.files, self.session, self._device = files, files.session(), device
        self._open: tuple[Trainer, Loop] | None = None
        lines = files.notes()
        self._kept = max((line["round"] for line in lines if "step" in line), default=0)

    def _opened(self) -> tuple[Trainer, Loop]:
        from glgpt.training.trainer import Trainer  # opens the graphics library

        run = RunFolder(self.files.run)
        s = self.session.settings
        tokenizer = load_tokenizer(run.path, run.record.vocab_size)
        if tokenizer is None:
            raise GlgptError(f"{run.path} has no tokenizer; restore its tokenizer files")
        data: Data = load_data(Text.of_files(run.record.files), s.validation, tokenizer, identity(run.path))
        trainer = Trainer.load(run.path, batch=s.batch, device=self._device)
        run.rewind(trainer.steps_done)
        return trainer, Loop(trainer, data, tokenizer, s, run, TrainingCallbacks())

    def catch_up(self, done: int) -> Iterator[dict[str, Any]]:
        """Evaluates and saves the model after the latest finished round, and yields the metrics of new rounds.

        `done` is the number of finished rounds. Of the rounds that finished since the previous evaluation, only the
        last is evaluated; the metrics of the others have no validation loss. Yields nothing if no round has finished
        since the previous evaluation.
        """
        if done <= self._kept:
            return
        self._open = self._open or self._opened()
        held = self.files.checkpoint()
        number = held.round
        trainer, session = self._open[0], self.session
        trainer.steps_done = min(session.first_step(number + 1), session.settings.steps)
        noted = {line["round"]: line for line in self._notes(number)}
        lines = [noted[n] for n in range(self._kept + 1, number + 1) if n in noted]
        extra = self._evaluated(*self._open, held.parameters, lines[-1]["loss"] if lines else None)
        self.files.note({"round": number, **extra})
        self._kept = number
        for line in lines:
            yield line | (extra if line["round"] == number else {})

    def _evaluated(self, trainer: Trainer, loop: Loop, parameters: Vector, loss: float | None) -> dict[str, Any]:
        """Evaluates and saves the parameters, and generates a sample. Returns the metrics, or why evaluation failed.

        Raises no error for a failed evaluation, except FileError: an error would end the session, and the next `serve`
        would fail in the same way.
        """
        step = trainer.steps_done
        try:
            trainer.set_parameters(protocol.unflatten(parameters, self.session.shapes()))
            found = loop.keep(step, loss)
        except FileError:
            raise
        except GlgptError as error:
            return {"step": step, "problem": quoted(error, 300)}
        return {k: v for k, v in found.items() if not isinstance(v, float) or math.isfinite(v)}

    def _notes(self, number: int) -> list[dict[str, Any]]:
        """Returns the lines of `rounds.jsonl`, after waiting up to 2 s for a line about round `number`'s updates."""
        for _ in range(20):
            lines = self.files.notes()
            if any(line["round"] == number and "clients" in line for line in lines):
                return lines
            time.sleep(0.1)
        return self.files.notes()

    def close(self) -> None:
        """Releases the device and the folder."""
        if self._open is not None:
            trainer, loop = self._open
            trainer.close()
            loop.run.close()
            self._open = None
