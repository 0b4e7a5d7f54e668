"""Benchmarks a training step: its time, the share of this time outside matrix products, and its memory."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from glgpt import models
from glgpt.bench.peaks import TIME_LIMIT_S, Clock, Measure, device_peaks
from glgpt.errors import GlgptError
from glgpt.gl.device import open_device
from glgpt.gl.player import Player
from glgpt.program.spec import Entry, Program
from glgpt.training.settings import PRESETS
from glgpt.training.trainer import Trainer
from glgpt.tuning.kernel_selection import as_dict, product_program

SHAPES = {"nano": 256, "small": 1024}  # preset -> vocabulary size


def run_bench_train(
    presets: Sequence[str],
    quick: bool = False,
    seconds: float = TIME_LIMIT_S,
    device: str | int = "auto",
    report: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> dict[str, Any]:
    """Measures training steps of each preset (default: nano and small); docs/reference/cli.md documents the result.

    Uses fewer rounds if the benchmark would take more than `seconds`. Raises GlgptError for an unknown preset.
    """
    clock = Clock(seconds)
    unknown = sorted(set(presets) - PRESETS.keys())
    if unknown:
        raise GlgptError(f"preset {unknown[0]!r} is not one of {', '.join(PRESETS)}")
    opened, rounds = open_device(device), 3 if quick else 5
    rows: list[dict[str, Any]] = []
    choice: dict[str, object] = {}
    peaks: dict[str, float] = {}
    for i, name in enumerate(presets or SHAPES):
        report(f"measuring training steps of {name}")
        p = PRESETS[name]
        config = models.family(models.DEFAULT).sized(SHAPES.get(name, 1024), p.context, p.n_embd, p.n_layer, p.n_head)
        with Trainer(config, batch=p.batch, betas=(0.9, p.beta2), device=device, **options) as trainer:
            peaks = peaks or device_peaks(opened, trainer.choice.options, rounds, clock.at(0.25))
            choice = as_dict(trainer.choice)
            until = clock.at(0.25 + 0.75 * (i + 1) / len(presets or SHAPES))
            rows.append(_preset(name, trainer, rounds, peaks["fma_gflops"], until))
    described = {"renderer": opened.renderer, "version": opened.version, "choice": choice}
    return {"schema": 1, "device": described | peaks, "rows": rows}


def _preset(name: str, trainer: Trainer, rounds: int, peak: float, until: float) -> dict[str, Any]:
    config, r, player = trainer.config, trainer.recipe, trainer.player
    before = trainer.device.texture_bytes
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (r.batch, r.context))
    for _ in range(3):  # warms up both orders of the ping-pong textures
        trainer.step(ids, ids)
    seconds = _steps(trainer, ids, rounds, until)
    shares = _alone(player, rounds, until)
    products, others = shares["matmul"], sum(s for kind, (s, _) in shares.items() if kind != "matmul")
    flops = r.batch * r.context * config.training_flops(r.context)
    rate = _product_rate(trainer, rounds, until)
    return {
        "name": name,
        "precision": r.precision,
        "shape": f"{config.n_layer} layers, {config.n_embd} wide, context {r.context}, batch {r.batch}, "
        f"vocabulary {config.vocab_size}",
        "ms": 1e3 * seconds,
        "tokens_per_s": r.batch * r.context / seconds,
        "gflops": flops / seconds / 1e9,
        "share": flops / seconds / 1e9 / peak,
        "of": "fma",
        "passes": sum(len(player.entry(e).passes) for e in ("backward", "update")),
        "product_gflops": products[1] / products[0] / 1e9,
        "matmul_gflops": rate,
        "other_share": others / (others + products[0]),
        "alone_ms": {kind: 1e3 * s for kind, (s, _) in sorted(shares.items(), key=lambda item: -item[1][0])},
        "planned_bytes": sum(trainer.memory.values()),
        "texture_bytes": trainer.device.texture_bytes,
        "grown_bytes": trainer.device.texture_bytes - before,
    }


def _steps(trainer: Trainer, ids: np.ndarray, rounds: int, until: float) -> float:
    """Returns the median seconds of a step when several follow each other, as in training."""
    times = []
    for done in range(rounds):
        if done and time.monotonic() > until:
            break
        start = time.perf_counter()
        for _ in range(3):
            trainer.submit(ids, ids)
        trainer.drain()
        trainer.player.finish()
        times.append((time.perf_counter() - start) / 3)
    return statistics.median(times)


def _alone(player: Player, rounds: int, until: float) -> dict[str, tuple[float, int]]:
    """Plays each pass of a step alone; returns (seconds, operations) by shader, summed over the shader's passes."""
    found: dict[str, tuple[float, int]] = {}
    entries = {}
    for entry in (player.entry("backward"), player.entry("update")):
        for i, p in enumerate(entry.passes):
            entries[f"{entry.name} {i}"] = Entry(f"{entry.name} {i}", entry.inputs, (p,), {})
    with _over(player, entries) as alone:
        measure = Measure(player.device, rounds, until)
        for name in entries:
            measure.add(name, partial(alone.play, name), repeats=3)
        for name, seconds in measure.seconds().items():
            p = entries[name].passes[0]
            kind = p.shader.rsplit("-", 1)[0]
            before, flops = found.get(kind, (0.0, 0))
            found[kind] = before + seconds, flops + p.flops
    return found


def _over(player: Player, entries: dict[str, Entry]) -> Player:
    """Returns a player of these entries that uses the textures of `player`, with their current contents."""
    textures = {name: replace(t, role="state") for name, t in player.program.textures.items()}
    program: Program = replace(player.program, textures=textures, entries=entries)
    return Player(player.device, program, player.options, player.textures)


def _product_rate(trainer: Trainer, rounds: int, until: float) -> float:
    """Returns the GFLOPS of one block's forward products for all tokens of a batch, measured as separate programs."""
    rows, device = trainer.recipe.batch * trainer.recipe.context, trainer.device
    block = [p for p in trainer.config.parameters.values() if p.product and p.layer == 0]
    shapes, kernel = [(rows, *p.unpadded) for p in block], replace(trainer.choice.kernel, contiguous=0)
    with contextlib.ExitStack() as stack:
        measure = Measure(device, rounds, until)
        for shape in shapes:
            program = product_program(device.limits, kernel, trainer.recipe.precision, shape)
            player = stack.enter_context(Player(device, program, trainer.choice.options))
            measure.add(str(shape), partial(player.play, "probe"))
        seconds = sum(measure.seconds().values())
    return sum(2 * m * k * n for m, k, n in shapes) / seconds / 1e9


def render(result: dict[str, Any]) -> str:
    """Formats the results as text."""
    d = result["device"]
    lines = [f"{d['renderer']}: {d['fma_gflops']:.0f} GFLOPS of multiply-adds"]
    for r in result["rows"]:
        slowest = ", ".join(f"{kind} {ms:.1f}" for kind, ms in list(r["alone_ms"].items())[:8])
        lines += [
            "",
            f"{r['name']}: {r['shape']}" + (f", {r['precision']}" if r["precision"] != "f32" else ""),
            f"  step {r['ms']:.1f} ms, {r['tokens_per_s']:,.0f} tokens/s, {r['gflops']:.1f} GFLOPS, "
            f"{r['share']:.0%} of the multiply-add peak; {r['passes']} passes",
            f"  products {r['product_gflops']:.1f} GFLOPS, {r['product_gflops'] / r['matmul_gflops']:.0%} of "
            f"a separate benchmark of their shapes ({r['matmul_gflops']:.1f}); "
            f"other passes {r['other_share']:.0%} of the step",
            f"  textures {r['texture_bytes'] / 2**20:.0f} MiB, planned {r['planned_bytes'] / 2**20:.0f}, "
            f"{r['grown_bytes']} bytes allocated by the steps",
            f"  ms by shader, each pass played alone: {slowest}",
        ]
    return "\n".join(lines)
