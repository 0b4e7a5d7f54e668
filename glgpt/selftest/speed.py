"""Measures the speed of a device: a matrix product of 64 rows, and a token of a small model whose weights are zero."""

from __future__ import annotations

import statistics
import time
from typing import Any

from glgpt import models, ops
from glgpt.gl.device import Device, Options
from glgpt.gl.player import Player
from glgpt.inference.programs import generation_program
from glgpt.program.kernel import KERNELS
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits, Program
from glgpt.selftest.suite import ENTRY, passes_json, program_from, whole

ROWS, INNER, COLS = 64, 768, 1536
SIZES = (8192, 64, 256, 6, 4)  # vocabulary, context, width, blocks, heads
FOUR = Limits(max_draw_buffers=4)  # four draw buffers, the minimum that WebGL2 guarantees
MEASURED_S = 0.5  # approximate seconds of one measurement, for all repeats together
REPEATS = 3


def speed_json() -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Returns the programs to time, in the form that cases have in a document of the self-test, and their shaders."""
    rec = Recorder(FOUR)
    with rec.entry(ENTRY):
        x = rec.fixed("x", Layout(ROWS, INNER, (4, 1)), "weight")
        rec.output(ops.matmul(rec, x, rec.fixed("w", Layout(INNER, COLS), "weight"), None, "y"))
    product = rec.program()
    decode = generation_program(models.family(models.DEFAULT).sized(*SIZES), FOUR, KERNELS["4x4"], "q8")
    shaders = product.shaders | {p.shader: decode.shaders[p.shader] for p in decode.entries["decode"].passes}
    return [
        {"name": "product", "flops": 2 * ROWS * INNER * COLS, "scalars": {}, **passes_json(product, ENTRY)},
        {"name": "token", "flops": 0, "scalars": {"pos": 32}, **passes_json(decode, "decode")},
    ], shaders


def measure(device: Device, options: Options, document: dict[str, Any]) -> dict[str, float]:
    """Returns the speed of the product in GFLOP/s, and the time of a token in milliseconds."""
    found, shaders = {}, whole(document)
    for each in document["speed"]:
        program = program_from(each, shaders, document["scalars"])
        seconds = _seconds(device, options, program, each["scalars"])
        if each["flops"]:
            found[f"{each['name']} GFLOP/s"] = round(each["flops"] / seconds / 1e9, 2)
        else:
            found[f"{each['name']} ms"] = round(1000 * seconds, 3)
    return found


def _seconds(device: Device, options: Options, program: Program, scalars: dict[str, float]) -> float:
    """Returns the median time in seconds of playing the program's entry once."""
    with Player(device, program, options) as player:
        for name in player.program.textures:
            player.clear(name)

        def timed(count: int) -> float:
            begun = time.perf_counter()
            for _ in range(count):
                player.play(ENTRY, **scalars)
            player.finish()
            return (time.perf_counter() - begun) / count

        timed(1)
        count = max(1, round(MEASURED_S / REPEATS / timed(1)))
        return statistics.median(timed(count) for _ in range(REPEATS))
