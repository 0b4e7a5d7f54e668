"""Manages a training run's folder: settings, metrics, samples and saved steps. `training.state` writes checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from glob import escape
from pathlib import Path
from typing import Any

from glgpt.checkpoint.steps import STEPS, kept_steps
from glgpt.errors import FileError, quoted
from glgpt.system.files import named_errors, read_bytes, read_text, staged_folder, written_whole
from glgpt.system.locks import lock_folder
from glgpt.system.outputs import output_folder
from glgpt.training.records import Line, Record, validated

MAX_METRICS_BYTES = 1 << 30  # enough for about five million steps
RECORD, METRICS, SAMPLES, STATE = "train.json", "metrics.jsonl", "samples", "state.safetensors"


def check_new(path: str | Path) -> Path:
    """Returns the path of a new run's folder, with links resolved. Raises FileError if it exists and is not empty."""
    hint = f"a run already; continue it with --resume {shlex.quote(quoted(path, 300))}, or give another --out"
    found, named = output_folder(path, held=(hint, lambda folder: (folder / STATE).exists())), Path(path)
    return found if any(above.is_symlink() for above in (named, *named.parents)) else named


def free_name(path: Path) -> Path:
    """Returns `path`, or the first of `path`-2, `path`-3, … that does not exist and that `staged` is not filling."""
    number, found = 1, path
    while found.exists() or any(found.parent.glob(f".{escape(found.name)}.*")):
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


@contextlib.contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yields a temporary folder that is renamed to `path` when the `with` block ends, or removed if the block fails."""
    with staged_folder(path) as folder:
        yield folder
        check_new(path)  # another run may have taken the name


class RunFolder:
    """A run's folder, locked by one process at a time; close it, or use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Raises GlgptError if the folder is not that of a run, or if another process is training in it."""
        self.path = path
        for name in (RECORD, STATE):
            if not (path / name).is_file():
                raise FileError(f"{quoted(path, 300)} is not a training run: it has no {name}")
        self.record = validated(Record, read_text(path / RECORD), f"{quoted(path / RECORD, 300)} is damaged")
        if (path / METRICS).exists():
            self.lines()  # raises if a line is invalid, before anything is written
        unlock = lock_folder(path)
        if unlock is None:
            raise FileError(f"{quoted(path, 300)} is being trained by another process")
        self._unlock = unlock
        self._metrics = (path / METRICS).open("ab")

    def rewind(self, step: int) -> None:
        """Removes everything recorded after `step`, and files that a killed process left incomplete."""
        self._rewrite([line for line in self.lines() if line["step"] <= step])
        for sample in (self.path / SAMPLES).glob("*.txt"):
            if sample.stem.isdecimal() and len(sample.stem) < 20 and int(sample.stem) > step:
                sample.unlink()
        for name in (STATE, "model.safetensors", "config.json", RECORD, METRICS, "loss.png"):
            for partial in self.path.glob(f".{name}.*"):
                partial.unlink()
        for partial in (self.path / STEPS).glob(".*"):
            shutil.rmtree(partial)
        self._forget([later for later in kept_steps(self.path) if later > step])

    def keep(self, step: int, most: int) -> None:
        """Saves the model of `step` in a separate folder, and deletes all but the last `most` of such folders.

        If `most` is 0, saves nothing. The saved files are hard links to the run's files (copies, if the file system has
        no links), so saving takes little time. The saved files never change, because the run replaces its own files
        instead of overwriting them.
        """
        self._forget([*(kept_steps(self.path)[: -most + 1] if most > 1 else kept_steps(self.path)), step])
        if not most:
            return
        with staged_folder(self.path / STEPS / str(step)) as folder:
            for file in self.path.iterdir():
                if file.is_file() and not file.name.startswith(".") and file.name not in (STATE, METRICS, "loss.png"):
                    try:
                        os.link(file, folder / file.name)
                    except OSError:  # a file system without links
                        shutil.copyfile(file, folder / file.name)

    def _forget(self, steps: list[int]) -> None:
        for step in steps:
            if (folder := self.path / STEPS / str(step)).is_dir():
                shutil.rmtree(folder)

    def note(self, line: dict[str, Any]) -> None:
        """Appends a line to metrics.jsonl."""
        with named_errors(self.path / METRICS):
            self._metrics.write(_line(line))
            self._metrics.flush()

    def amend(self, step: int, values: dict[str, Any]) -> None:
        """Adds values to the last line if it is for `step`; otherwise, appends a line for `step`."""
        lines = self.lines()
        if lines and lines[-1]["step"] == step:
            values = lines.pop() | values
        self._rewrite([*lines, {"step": step} | values])

    def _rewrite(self, lines: list[dict[str, Any]]) -> None:
        with written_whole(self.path / METRICS) as file:
            file.writelines(_line(line) for line in lines)
        self._metrics.close()
        self._metrics = (self.path / METRICS).open("ab")

    def sync(self) -> None:
        """Flushes metrics.jsonl to disk, so that after a crash, it has all steps of a checkpoint saved later."""
        with named_errors(self.path / METRICS):
            os.fsync(self._metrics.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """Returns the lines of metrics.jsonl, without an incomplete last line.

        Raises FileError, naming line and field, for an invalid line.
        """
        path, found = self.path / METRICS, []
        lines = read_bytes(path, MAX_METRICS_BYTES).split(b"\n")
        for number, line in enumerate(lines, 1):
            try:
                if line:
                    where = f"{quoted(path, 300)} is damaged: line {number}"
                    found.append(validated(Line, line, where).model_dump(exclude_unset=True))
            except FileError:
                if number < len(lines):  # an incomplete last line is from a killed process
                    raise
        return found

    def sample(self, step: int, text: str) -> None:
        """Writes a sample to samples/."""
        self.sample_file(step).parent.mkdir(exist_ok=True)
        with written_whole(self.sample_file(step)) as file:
            file.write(text.encode("utf-8", errors="replace"))

    def sample_file(self, step: int) -> Path:
        """Returns the path of a step's sample."""
        return self.path / SAMPLES / f"{step:06}.txt"

    def close(self) -> None:
        """Unlocks the folder. Closing twice is harmless."""
        if not self._metrics.closed:
            self._metrics.close()
            self._unlock()

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _line(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, allow_nan=False) + "\n").encode()
