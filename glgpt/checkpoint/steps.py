"""Finds the checkpoints of earlier steps that a training run has saved: `RUN@400` names the checkpoint of step 400."""

from __future__ import annotations

import re
from pathlib import Path

from glgpt.errors import FileError, quoted

STEPS = "steps"  # subfolder of a run's folder
MAX_DIGITS = 18  # maximum digits of a step's number
_NAMED = re.compile(r"(.+)@(\w+)", re.DOTALL)


def kept_steps(run: Path) -> list[int]:
    """Returns the numbers of a run's saved steps, in ascending order."""
    return sorted(
        int(p.name) for p in (run / STEPS).glob("*") if re.fullmatch(rf"\d{{1,{MAX_DIGITS}}}", p.name) and p.is_dir()
    )


def step_folder(name: str) -> Path | None:
    """Returns the folder of the step in a name such as `runs/play@400`; None for other names and for existing files.

    Raises FileError for a run that does not exist, and for a step that the run has not saved.
    """
    found = _NAMED.fullmatch(name)
    if found is None or Path(name).exists():
        return None
    run, step = Path(found[1]), found[2]
    if not step.isdecimal() and not run.is_dir():
        return None
    if not (run / "config.json").is_file():
        folder = quoted(run, 150)
        why = f"the folder {folder} has no config.json" if run.is_dir() else f"the folder {folder} does not exist"
        raise FileError(f"{quoted(name, 150)} is not a step of a run: {why}; give RUN@STEP with the folder of a run")
    kept = kept_steps(run)
    if step.isdecimal() and len(step) <= MAX_DIGITS and int(step) in kept:
        return run / STEPS / str(int(step))
    saved = f"its saved step{'s are' if len(kept) > 1 else ' is'} {', '.join(map(str, kept))}"
    there = saved if kept else "only its last checkpoint is saved"
    raise FileError(
        f"{quoted(run, 300)} has no step {quoted(step)}: {there} (glgpt train --keep N keeps the last N saves)"
    )
