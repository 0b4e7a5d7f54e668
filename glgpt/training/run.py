"""Trains a model on text, in a run folder that can be resumed at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glgpt import __version__
from glgpt.checkpoint.generation_config import end_of_text, recommended_sampling
from glgpt.checkpoint.opening import Checkpoint
from glgpt.data.fetching import source_of
from glgpt.errors import ArgumentError, GlgptError, quoted, written
from glgpt.models.spec import ModelConfig
from glgpt.system.files import check_utf8, write_json
from glgpt.text.dataset import Data, check_length, load_data
from glgpt.text.files import Text
from glgpt.text.tokenizer import Tokenizer, load_tokenizer
from glgpt.text.tokenizer_training import bpe_size, copy_model_tokenizer, identity, make_tokenizer
from glgpt.training.events import RunTrainer, Start, Trained, TrainingCallbacks
from glgpt.training.loop import Loop
from glgpt.training.records import Record
from glgpt.training.run_folder import RECORD, RunFolder, check_new, free_name, staged
from glgpt.training.settings import Settings, settings_for

# Settings that may change when a run is resumed; the others, such as those of the model and its batches, may not.
CHANGEABLE = (
    "steps lr min_lr warmup schedule weight_decay clip dropout recompute device max_texture_memory "
    "eval_every eval_tokens sample_every sample_tokens save_every keep"
).split()


def train(
    files: str | Path | Iterable[str | Path] = (),
    *,
    text: str | None = None,
    out: str | Path | None = None,
    preset: str | None = None,
    init: str | Path | None = None,
    resume: str | Path | None = None,
    callbacks: TrainingCallbacks | None = None,
    **settings: Any,
) -> Trained:
    """Trains a model on files of UTF-8 text (joined in the given order), or on `text`; returns when it is done.

    A new run gets the folder `out` (default: a new one in `runs`). It starts from fresh weights with a `preset`'s size
    (default "nano") or from the checkpoint `init`, and accepts any field of `training.settings.Settings`. With
    `resume`, the run in the folder `resume` continues; on the same device, the result is bit for bit as if the run had
    never stopped. The text stays the same, and so do all settings, except those of `CHANGEABLE` that are given. A run
    that was started with `text` must be given the same text again. An interrupt (Ctrl-C, SIGTERM, a closed terminal)
    ends a run early with a checkpoint; a second interrupt ends it immediately.

    `callbacks` are notified of steps, validations, samples and checkpoints.

    Raises GlgptError for unusable text or settings, and its subclass DivergedError if a loss or gradient is not finite.
    """
    if not isinstance(callbacks, TrainingCallbacks | None):
        raise ArgumentError(f"callbacks is {written(callbacks)}; it must be a glgpt.TrainingCallbacks")
    callbacks = callbacks or TrainingCallbacks()
    named = [files] if isinstance(files, (str, Path)) else list(files)
    if named and text is not None:
        raise GlgptError("both files and a text were given; give one of them")
    source = Text.of_string(text) if text is not None else Text.of_files(named) if named else None
    given = {name: value for name, value in settings.items() if value is not None}
    if resume is not None:
        if out is not None or preset is not None or init is not None:
            raise GlgptError("resume cannot be combined with out, preset or init")
        return _resumed(Path(resume), source, given, callbacks)
    if source is None:
        raise GlgptError("no text was given; name at least one file")
    for name in (*named, init or "", given.get("tokenizer", "")):
        check_utf8(str(name), f"{RECORD} records the names of files")
    record: dict[str, Any] = {
        "files": [str(Path(file).absolute()) for file in named],
        "preset": preset,
        "init": init and str(init),
    }
    record["sources"] = [found for file in named if (found := source_of(Text.of_files([file]).digest()))]
    return _new(source, record, out, given, callbacks)


def _new(
    text: Text, record: dict[str, Any], out: str | Path | None, given: dict[str, Any], callbacks: TrainingCallbacks
) -> Trained:
    with new_run(text, record, out, given, callbacks) as made:
        return _go(made.trainer, made.data, made.tokenizer, made.settings, made.run, callbacks)


@dataclass(frozen=True)
class NewRun:
    """A run folder with a checkpoint of step 0, and everything needed to train it."""

    trainer: RunTrainer
    data: Data
    tokenizer: Tokenizer
    settings: Settings
    run: RunFolder


@contextlib.contextmanager
def new_run(
    text: Text,
    record: dict[str, Any],
    out: str | Path | None,
    given: dict[str, Any],
    callbacks: TrainingCallbacks,
    also: Callable[[Path, Any, Data, Settings], None] | None = None,
) -> Iterator[NewRun]:
    """Creates the folder of a new run: tokenizer, settings, and fresh weights or those of a checkpoint.

    `record` holds the `files`, `preset`, `init` and perhaps `sources` of `records.Record`, and `given` has the settings
    that differ from the defaults. `also` is called with the folder, the trainer, the data and the settings before the
    folder appears under its name, so that the files that `also` writes are there from the start. Raises GlgptError for
    unusable text or settings.
    """
    init = record["init"]
    if init is None:
        record["preset"] = record["preset"] or "nano"
    elif record["preset"] is not None:
        raise GlgptError("preset and init cannot be combined: the checkpoint determines the size")
    if out is not None:
        out = check_new(out)
    checkpoint = None if init is None else Checkpoint.open(init)
    settings = settings_for(record["preset"], checkpoint.config if checkpoint else None, given)
    if checkpoint is None:  # an invalid size is refused before a tokenizer is trained
        settings.model_config(bpe_size(settings.tokenizer) or 1)
    if out is None:  # chosen right before `staged`, so that no run that starts at the same time chooses it too
        stem = Path(record["files"][0]).stem if record["files"] else "text"
        out = check_new(free_name(Path("runs") / f"{stem}-{record['preset'] or Path(init).name}"))
    with contextlib.ExitStack() as stack:
        with staged(out) as folder:
            model: ModelConfig | str
            if checkpoint is None:
                learned = text.split(settings.validation)[0]
                tokenizer = make_tokenizer(
                    settings.tokenizer, learned, folder, callbacks.task("training the tokenizer")
                )
                model = settings.model_config(tokenizer.vocab_size)
            else:
                tokenizer = copy_model_tokenizer(checkpoint.path, checkpoint.config.vocab_size, folder)
                model = init
            data = _load(text, settings, tokenizer, folder, callbacks)
            trainer_class = _trainer()
            trainer = stack.enter_context(
                trainer_class(model, context=settings.context, seed=settings.seed, **_options(settings, callbacks))
            )
            ends = end_of_text(checkpoint.path if checkpoint else folder, tokenizer.vocab_size, tokenizer)
            eos = list(ends) if len(ends) > 1 else next(iter(ends), None)
            sampling = recommended_sampling(checkpoint.path) if checkpoint else {}
            generation = {"bos_token_id": tokenizer.eos, "eos_token_id": eos} | sampling
            write_json(folder / "generation_config.json", generation)
            whole = Record(
                glgpt=__version__,
                vocab_size=tokenizer.vocab_size,
                data=data.key,
                tokenizer=identity(folder),
                settings=settings,
                **record,
            )
            write_json(folder / RECORD, whole.model_dump())
            # Saves step 0, so that a run has a checkpoint from the start.
            trainer.save(folder, tokenizer.eos, callbacks.task("saving a checkpoint"))
            if also:
                also(folder, trainer, data, settings)
        run = stack.enter_context(RunFolder(out))
        yield NewRun(trainer, data, tokenizer, settings, run)


def _resumed(path: Path, text: Text | None, given: dict[str, Any], callbacks: TrainingCallbacks) -> Trained:
    fixed = sorted(given.keys() - set(CHANGEABLE))
    if fixed:
        raise GlgptError(f"{fixed[0]} cannot change in a run; these can: {', '.join(CHANGEABLE)}")
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(RunFolder(path))
        before, folder = run.record.settings, quoted(path, 300)
        if isinstance(given.get("lr"), (int, float)):  # keep the ratio of min_lr to lr
            given = {"min_lr": before.min_lr * given["lr"] / before.lr} | given
        settings = replace(before, **given)
        if text is None:
            if not run.record.files:
                raise GlgptError(f"{folder} was trained on a text, not on files: give the same text again")
            text = Text.of_files(run.record.files)
        tokenizer = load_tokenizer(path, run.record.vocab_size)
        if tokenizer is None:
            raise GlgptError(f"{folder} has no tokenizer files; restore them")
        if run.record.tokenizer != identity(path):
            raise GlgptError(f"{folder}: its tokenizer files are not the ones it was trained with; restore them")
        data = _load(text, settings, tokenizer, path, callbacks)
        if data.key != run.record.data:
            shown = quoted(text.name, 300)
            raise GlgptError(f"{shown} is not the text that {folder} was trained on: give the same files again")
        trainer = stack.enter_context(_trainer().load(path, **_options(settings, callbacks)))
        if settings.steps <= trainer.steps_done:
            raise GlgptError(f"{folder} has done its {trainer.steps_done} steps; to continue, give more with --steps")
        run.rewind(trainer.steps_done)
        write_json(path / RECORD, run.record.model_copy(update={"settings": settings}).model_dump())
        return _go(trainer, data, tokenizer, settings, run, callbacks)


def _trainer() -> type[RunTrainer]:
    from glgpt.training.trainer import Trainer  # importing it loads the graphics library

    return Trainer


def _options(s: Settings, callbacks: TrainingCallbacks) -> dict[str, Any]:
    """Returns a trainer's options from the settings of a run."""
    device = int(s.device) if str(s.device).isdecimal() else s.device
    names = ("batch", "accumulate", "lr", "weight_decay", "dropout", "recompute", "precision", "max_texture_memory")
    return {name: getattr(s, name) for name in names} | {
        "betas": (s.beta1, s.beta2), "clip": s.clip or None, "device": device,
        "on_plan": callbacks.on_plan, "on_progress": callbacks.on_progress,
    }  # fmt: skip


def _load(text: Text, s: Settings, tokenizer: Tokenizer, folder: Path, callbacks: TrainingCallbacks) -> Data:
    data = load_data(text, s.validation, tokenizer, identity(folder), callbacks.task("tokenising"))
    check_length(data.train, s.context, "training")
    if s.validation:
        check_length(data.validation, s.context, "validation")
    return data


def _go(
    trainer: RunTrainer, data: Data, tokenizer: Tokenizer, s: Settings, run: RunFolder, callbacks: TrainingCallbacks
) -> Trained:
    if callbacks.on_start:
        tokens = len(data.train), len(data.validation)
        memory, done = dict(trainer.memory), trainer.steps_done
        callbacks.on_start(Start(run.path, trainer.config, s, trainer.config.parameter_count, *tokens, memory, done))
    return Loop(trainer, data, tokenizer, s, run, callbacks).go()
