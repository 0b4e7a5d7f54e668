"""Draws the cases of the self-test on a device. A case is an op of `glgpt.ops` with given inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError
from glgpt.gl.device import Device, Options
from glgpt.gl.player import Player
from glgpt.program.spec import check
from glgpt.selftest.suite import ENTRY, Case

Texels = NDArray[np.float32 | np.uint32]


@dataclass(frozen=True)
class Result:
    """The result of a case: `status` is "passed", "failed" or "skipped"; `problem` says why a case did not pass.

    `error`, `allowed` and `excess` (`error` / `allowed`) are those of the value with the largest excess; `output` is
    the name of the output that holds this value. `first_ms` is the time of the first draw in milliseconds, including
    compiling, uploading the inputs and reading the outputs. `same` is True if both draws gave equal bits.
    """

    case: Case
    status: str
    problem: str = ""
    output: str = ""
    error: float = 0.0
    allowed: float = 0.0
    excess: float = 0.0
    first_ms: float = 0.0
    same: bool = True


def draw_all(
    device: Device, options: Options, cases: list[Case], progress: Callable[[int, int], None] | None = None
) -> list[Result]:
    """Draws every case. `progress` is called with (cases drawn, all cases)."""
    found = []
    with ExitStack() as players:  # players stay open, so that later cases share their compiled shaders
        for i, case in enumerate(cases, 1):
            found.append(draw(device, options, case, players))
            if progress:
                progress(i, len(cases))
    return found


def draw(device: Device, options: Options, case: Case, players: ExitStack) -> Result:
    """Draws a case twice; compares the first result with the expected values, and the second result with the first."""
    if case.targets > device.limits.max_draw_buffers:
        return Result(case, "skipped", f"needs {case.targets} targets in a pass")
    try:
        check(case.program, device.limits)
        player = players.enter_context(Player(device, case.program, options))
        begun = time.perf_counter()
        first = _played(player, case)
        ms = 1000 * (time.perf_counter() - begun)  # software drivers compile in the first draw
        second = _played(player, case)
    except GlgptError as trouble:
        return Result(case, "failed", str(trouble))
    found = [(expected.name, *expected.errors(texels)) for expected, texels in zip(case.expected, first, strict=True)]
    output, error, allowed, excess = max(found, key=lambda each: each[3])
    same = all(np.array_equal(a.view(np.uint32), b.view(np.uint32)) for a, b in zip(first, second, strict=True))
    problem = "" if same else "two draws of the same inputs give different bits"
    if excess > 1:
        problem = f"{output} is off by {error:.3g}; {allowed:.3g} is allowed"
    measured = output, error, allowed, excess, ms, same
    return Result(case, "failed" if problem else "passed", problem, *measured)


def _played(player: Player, case: Case) -> list[Texels]:
    """Uploads the inputs, draws once, and reads the outputs."""
    for name, values in case.inputs.items():
        t = case.program.textures[name]
        dtype: Any = np.float32 if t.format == "float" else np.uint32
        texels = values.astype(dtype, copy=False).reshape(t.layers, t.height, t.width, 4)
        for layer in range(t.layers):
            player.write(name, layer, texels[layer])
    for t in player.program.textures.values():
        if t.role == "state" and t.name not in case.inputs:
            player.clear(t.name)
    player.play(ENTRY, **case.scalars)
    return [player.read(expected.texture) for expected in case.expected]


def groups(results: list[Result]) -> Iterator[tuple[str, list[Result]]]:
    """Yields (format, results of the cases in this format), in the order of the suite."""
    for name in dict.fromkeys(result.case.format for result in results):
        yield name, [result for result in results if result.case.format == name]
