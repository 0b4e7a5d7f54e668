"""Finds the checkpoints of earlier steps that a training run has saved: `RUN@400` names that of step 400."""

from __future__ import annotations

import re
from pathlib import Path

from glgpt.errors import FileError, quoted

STEPS = "steps"  # subfolder of a run's folder
_NAMED = re.compile(r"(.+)@(\d{1,18})", re.DOTALL)


def kept_steps(run: Path) -> list[int]:
    """Returns the numbers of a run's saved steps, in ascending order."""
    return sorted(int(p.name) for p in (run / STEPS).glob("*") if re.fullmatch(r"\d{1,18}", p.name) and p.is_dir())


def run_of(name: str) -> Path | None:
    """Returns the run's folder in a name such as `runs/play@400`; None for other names and for existing files."""
    found = _NAMED.fullmatch(name)
    if found is None or Path(name).exists() or not (Path(found[1]) / "config.json").is_file():
        return None
    return Path(found[1])


def step_folder(name: str) -> Path | None:
    """Returns the folder of the step in a name such as `runs/play@400`; None for other names.

    Raises FileError for a step that the run has not saved.
    """
    run = run_of(name)
    if run is None:
        return None
    step = int(name.rpartition("@")[2])
    kept = kept_steps(run)
    if step in kept:
        return run / STEPS / str(step)
    there = f"its saved steps are {', '.join(map(str, kept))}" if kept else "only its last checkpoint is saved"
    raise FileError(f"{quoted(run, 300)} has no step {step}: {there} (glgpt train --keep N keeps the last N saves)")
