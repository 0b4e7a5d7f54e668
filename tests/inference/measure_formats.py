"""Compares the times of storage formats with random weights: loading, then decode and prefill in alternating runs.

python tests/inference/measure_formats.py [--formats f32,f16,q8,q4] [--shape "GPT-2 124M"] [--rounds 9]
    [--device software]

Prints for each format the median wall time and processor time, and the median of their ratios to the first format's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from glgpt.bench.engine import RandomCheckpoint
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.model import LanguageModel
from glgpt.inference.sampling import Sampler
from glgpt.page.player.shapes import common_shapes
from glgpt.tuning.kernel_selection import DeviceSettings

PLAYS = 4  # number of tokens that one timed call decodes


def works(model: LanguageModel) -> dict[str, Callable[[], None]]:
    """Returns the calls to time, by name: each decodes `PLAYS` tokens or prefills one prompt."""
    player, vocab = model.player, model.config.vocab_size

    def decode(pos: int, sampler: Sampler | None) -> None:
        for step in range(PLAYS):
            player.play("decode", pos=pos)
            if sampler and sampler.entry:
                player.play(sampler.entry, **sampler.scalars(pos + step, vocab))

    usual = Sampler(SamplingOptions(temperature=0.8, top_k=40, top_p=0.9, seed=1))
    found: dict[str, Callable[[], None]] = {
        "decode, context 64": lambda: decode(64, None),
        "decode, context 900": lambda: decode(900, None),
        "sampled, context 64": lambda: decode(64, usual),
    }

    def prefill(size: int, count: int) -> None:
        for i in range(count):
            player.play(f"prefill_{size}", pos=i * size, row=size - 1)

    for size, count in ((64, 1), (256, 2)):
        if f"prefill_{size}" in player.program.entries:
            found[f"prefill, {size * count} tokens"] = partial(prefill, size, count)
    return found


def main() -> None:
    shapes = {shape.name: shape.config for shape in common_shapes()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="f32,f16,q8,q4")
    parser.add_argument("--shape", default="GPT-2 124M", choices=shapes)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--kernel", default="auto")
    args = parser.parse_args()
    checkpoint: Any = RandomCheckpoint(shapes[args.shape])
    models: dict[str, LanguageModel] = {}
    for name in args.formats.split(","):
        start = time.perf_counter()
        settings = DeviceSettings(device=args.device, kernel=args.kernel)
        model = models[name] = LanguageModel(checkpoint, None, name, settings=settings)
        about = model.info()
        mb = {role: round(n / 1e6, 1) for role, n in about["bytes_by_role"].items()}
        took = time.perf_counter() - start
        print(f"{name}: loaded in {took:.1f} s, {about['passes']['decode']} passes per token, MB {mb}", flush=True)
    print(model.device.renderer, model.choice.kernel.label, model.choice.options.fetch)
    work = {name: works(model) for name, model in models.items()}
    for what in work[next(iter(work))]:
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
        for i in range(args.rounds + 1):
            for name, model in models.items():
                model.player.finish()
                wall, cpu = time.perf_counter(), time.process_time()
                work[name][what]()
                model.player.finish()
                if i:  # the first round also compiles shaders and is not counted
                    times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
        plays = 1 if what.startswith("prefill") else PLAYS
        base = np.array(next(iter(times.values())))
        for name, taken in times.items():
            (wall, cpu), ratio = np.median(taken, axis=0), np.median(np.array(taken) / base, axis=0)
            print(
                f"{what:<20} {name:<4} {1e3 * wall / plays:9.2f} ms {ratio[0]:6.3f}x"
                f"   processor {1e3 * cpu / plays:9.2f} ms {ratio[1]:6.3f}x",
                flush=True,
            )


if __name__ == "__main__":
    main()
