"""Measures the peak rates of a device; a benchmark reports most other rates as shares of the peak rates."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from glgpt.gl.device import Device, Options
from glgpt.gl.player import Player
from glgpt.program.layout import Layout, in_panels
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits, Program
from glgpt.tuning.kernel_selection import FETCHES

TIME_LIMIT_S = 120.0  # default maximum duration of a benchmark


class Clock:
    """A time budget in seconds that started when the object was created."""

    def __init__(self, seconds: float) -> None:
        self._start, self._seconds = time.monotonic(), seconds

    def at(self, share: float) -> float:
        """Returns the time at which a share of the budget will have passed, on the clock of `time.monotonic`."""
        return self._start + share * self._seconds


class Measure:
    """Times several functions in turn, so that a change of the machine's speed affects all of them, and takes medians.

    A play is one call of a function. On software GL, every play is flushed, because the driver drops draws that a later
    draw in the same batch overwrites. `until` is a time of `time.monotonic`. There are `rounds` rounds, but after
    `until` no round begins, except the first one.
    """

    def __init__(self, device: Device, rounds: int, until: float = math.inf) -> None:
        self.finish, self.rounds, self.until = device.ctx.finish, rounds, until
        self._flush = device.gl("glFlush", None) if device.software else lambda: None
        self._plays: dict[str, tuple[Callable[[], Any], int]] = {}

    def add(self, name: str, play: Callable[[], Any], repeats: int = 0) -> None:
        """Adds a function to time, in series of `repeats` plays; 0: as many plays as take 40 ms, but from 1 to 64."""
        play()
        self.finish()
        if not repeats:
            start = time.perf_counter()
            play()
            self.finish()
            repeats = max(1, min(64, int(0.04 / (time.perf_counter() - start + 1e-9))))
        self._plays[name] = (play, repeats)

    def seconds(self) -> dict[str, float]:
        """Returns the median seconds of one play of each function.

        Each round times a single play and a series of 1 + `repeats` plays. The difference, divided by `repeats`, is the
        time of a play without the fixed costs of a measurement.
        """
        times: dict[str, list[float]] = {name: [] for name in self._plays}
        for done in range(self.rounds):
            if done and time.monotonic() > self.until:
                break
            for name, (play, repeats) in self._plays.items():
                once, more = self._time(play, 1), self._time(play, 1 + repeats)
                times[name].append(max(more - once, 1e-9) / repeats)
        return {name: statistics.median(values) for name, values in times.items()}

    def _time(self, play: Callable[[], Any], repeats: int) -> float:
        self.finish()
        start = time.perf_counter()
        for _ in range(repeats):
            play()
            self._flush()
        self.finish()
        return time.perf_counter() - start


def fma_program(limits: Limits) -> tuple[Program, int]:
    """Returns a program whose entry `bench` only multiplies and adds, and the entry's number of operations.

    A multiply-add counts as two operations.
    """
    side, steps = 256, 512
    rec = Recorder(limits)
    x = rec.fixed("x", Layout(1, 4), "state")
    with rec.entry("bench"):
        rec.emit("bench/fma", {"x": x}, {"y": rec.output(rec.scratch("y", Layout(side, 4 * side)))}, {"STEPS": steps})
    return rec.program(), side * side * steps * 8 * 4 * 2


def device_peaks(device: Device, options: Options, rounds: int, until: float = math.inf) -> dict[str, float]:
    """Measures the peak rates of a device.

    Returns two rates: multiply-adds in fragment shaders (GFLOPS), and texture reads in 128-bit texels (GB/s). Also
    returns two times in microseconds per pass: the time of an empty pass, and the additional time of binding textures.
    """
    size, n = 4096, 100
    players: list[Player] = []
    measure = Measure(device, rounds, until)

    def add(name: str, program: Program, fetch: str = "") -> None:
        players.append(Player(device, program, Options(options.header, fetch or options.fetch, options.storage)))
        players[-1].prepare("bench")
        measure.add(name, lambda player=players[-1]: player.play("bench"))  # type: ignore[misc]

    def program(name: str, layout: Layout, build: Callable[[Recorder, Any], None], fetch: str = "") -> None:
        rec = Recorder(device.limits)
        state = rec.fixed("x", layout, "state")
        with rec.entry("bench"):
            build(rec, state)
        add(name, rec.program(), fetch)

    def read(across: int, by: int) -> Callable[[Recorder, Any], None]:
        def build(rec: Recorder, x: Any) -> None:
            part = x.rows // 64
            y = rec.output(rec.scratch("y", Layout(by * 64, x.cols // across // by)))
            rec.emit("bench/read", {"x": x}, {"y": y}, {"ROWS_EACH": part, "ACROSS": across, "BY": by})

        return build

    def empty(rec: Recorder, _: Any) -> None:
        y = rec.output(rec.scratch("y", Layout(1, 4)))
        for _ in range(n):
            rec.emit("bench/empty", {}, {"y": y})

    def touch(rec: Recorder, x: Any) -> None:
        last = [x, x, x]
        for i in range(n):
            y = rec.scratch(f"y{i}", Layout(1, 4))
            rec.emit("bench/touch", dict(zip("abc", last, strict=True)), {"y": y})
            last = [y, *last[:2]]
        rec.output(last[0])

    small, large = Layout(1, 4), Layout(64 * 52, 4 * size)  # 52 rows per fragment, like the engine's products
    # Each fragment reads `across` neighbouring texels of its rows, and 4 * `by` fragments together read neighbouring
    # texels of the same rows. For panels (strips 32 texels wide), `across` is 4 and `by` is at least 2, so that 4 * 2
    # fragments together read one row of a panel.
    panels = in_panels(large.rows, large.cols, device.limits.max_texture_size, 32)
    fma, flops = fma_program(device.limits)
    add("fma", fma)
    for across, by, layout in (
        *((1, 1, large), (1, 2, large), (2, 2, large), (4, 2, large), (4, 4, large)),
        *((4, 2, panels), (4, 8, panels)),
    ):
        for fetch in FETCHES:
            program(f"read {across} {by} {layout.texture_width} {fetch}", layout, read(across, by), fetch)
    program("empty", small, empty)
    program("touch", small, touch)
    seconds = measure.seconds()
    for player in players:
        player.close()
    return {
        "fma_gflops": flops / seconds["fma"] / 1e9,
        "read_gbs": large.nbytes / min(v for k, v in seconds.items() if k.startswith("read")) / 1e9,
        "empty_pass_us": seconds["empty"] / n * 1e6,
        "bound_pass_us": max(0.0, seconds["touch"] - seconds["empty"]) / n * 1e6,
    }
