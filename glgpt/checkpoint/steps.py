"""Steps of a run that are kept beside its last checkpoint: `RUN@400` names one of them."""

from __future__ import annotations

import re
from pathlib import Path

from glgpt.errors import FileError, quoted

STEPS = "steps"  # in a run's folder
_NAMED = re.compile(r"(.+)@(\d{1,18})", re.DOTALL)


def kept_steps(run: Path) -> list[int]:
    """The steps that a run keeps, in order."""
    return sorted(int(p.name) for p in (run / STEPS).glob("*") if re.fullmatch(r"\d{1,18}", p.name) and p.is_dir())


def run_of(name: str) -> Path | None:
    """The run's folder in a name such as `runs/play@400`; None for any other name, an existing folder's too."""
    found = _NAMED.fullmatch(name)
    if found is None or Path(name).exists() or not (Path(found[1]) / "config.json").is_file():
        return None
    return Path(found[1])


def step_folder(name: str) -> Path | None:
    """The folder of the step that a name such as `runs/play@400` means; None for any other name.

    Raises FileError for a step that the run does not keep.
    """
    run = run_of(name)
    if run is None:
        return None
    step = int(name.rpartition("@")[2])
    kept = kept_steps(run)
    if step in kept:
        return run / STEPS / str(step)
    there = f"its kept steps are {', '.join(map(str, kept))}" if kept else "it keeps no steps beside its last one"
    raise FileError(
        f"{quoted(run, 300)} does not keep step {step}: {there} (glgpt train --keep N keeps those of the last N saves)"
    )
