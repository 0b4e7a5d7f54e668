"""Benchmarks a device and the engine on it: products of matrices, prefill, decoding and loading."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from glgpt import models
from glgpt.bench.baselines import Baseline
from glgpt.bench.peaks import TIME_LIMIT_S, Clock, Measure, device_peaks
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import default_dtype
from glgpt.gl.device import Device, Options
from glgpt.gl.player import Player
from glgpt.gl.readback import Readback
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.chunks import Chunk, plan
from glgpt.inference.model import LanguageModel
from glgpt.inference.programs import recorded_sizes
from glgpt.inference.sampling import Sampler
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import AS_STORED, FORMATS
from glgpt.program.kernel import Kernel
from glgpt.tuning.kernel_selection import FETCHES, DeviceSettings, as_dict, product_program

SHAPE = (768, 3072)  # K, N of the products: the first matrix of GPT-2 124M's MLP
ROWS = (64, 256, 1024)  # M of the products
SAMPLERS = {  # ways to choose the token after a decoding step
    "decode": Sampler(SamplingOptions(temperature=0)),
    "+ temp 0.8": Sampler(SamplingOptions(temperature=0.8, seed=1)),
    "+ top-k 40": Sampler(SamplingOptions(temperature=0.8, top_k=40, seed=1)),
    "+ top-p 0.9": Sampler(SamplingOptions(temperature=0.8, top_p=0.9, seed=1)),
}
USUAL = "+ top-p 0.9"  # the default sampling of a page
DOWNLOAD_RATE = 50e6  # bits per second, to estimate the waiting time of a page's visitor
Report = Callable[[str], None]


class RandomCheckpoint:
    """A checkpoint of random weights (standard deviation 0.02) without a file, with the interface of `Checkpoint`."""

    def __init__(self, config: ModelConfig, name: str = "random-124M") -> None:
        self.config, self.path, self.name, self.adapter = config, Path(name), name, None

    def read(self, name: str) -> NDArray[np.float32]:
        """Returns the weights of the parameter `name`: the same ones in each call."""
        seed = sum(map(ord, name))
        parameter = self.config.parameters[name]
        values = np.random.default_rng(seed).standard_normal(parameter.shape, np.float32)
        values *= 0.02
        values += parameter.mean
        return values

    def dtype(self, name: str) -> str:
        """Returns the dtype of a parameter: always F32."""
        return "F32"

    def blocks(self, name: str) -> None:
        """Returns None: no weights are quantised."""

    def save(self, folder: Path) -> Path:
        """Writes the checkpoint to a folder that `Checkpoint.open` can read."""
        folder.mkdir(exist_ok=True)
        save_file({name: self.read(name) for name in self.config.parameters}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config.to_dict()))
        return folder


def run_bench(
    model: str | None = None,
    *,
    dtype: str | None = None,
    quick: bool = False,
    seconds: float = TIME_LIMIT_S,
    report: Report = lambda _: None,
    context: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Runs the whole benchmark; docs/reference/cli.md documents the result.

    Without a `model`, measures a GPT-2 124M with random weights. `quick` uses fewer rounds and omits the products of
    1024 rows. A benchmark that would take more than `seconds` also uses fewer rounds, and omits sizes that would take
    too long. `report` receives a message before each measurement. `options` are those of `DeviceSettings`.
    """
    settings, clock = DeviceSettings(**options), Clock(seconds)
    if model is not None:
        with Checkpoint.open(model) as checkpoint:  # an unusable model fails now, not after minutes
            dtype = dtype or default_dtype(checkpoint)
    opened, choice = settings.open()
    rounds = 3 if quick else 5
    report("measuring the device's peaks")
    peaks = device_peaks(opened, choice.options, rounds, clock.at(0.25))
    rows: list[dict[str, Any]] = []
    took = 0.0
    for m in ROWS[:2] if quick else ROWS:
        begun = time.monotonic()
        if took and begun + 4 * took > clock.at(0.6):  # each m takes four times as long as the previous m
            report(f"skipping products of {m} rows: they would take {4 * took:.0f} s; allow more with --seconds")
            continue
        report(f"measuring products of {m} rows")
        rows += products(opened, choice.kernel, choice.options, m, peaks["fma_gflops"], rounds, clock.at(0.6))
        took = time.monotonic() - begun
    report("loading the model")
    rate = max(r["gflops"] for r in rows if r["name"] == _product_name(_products(dtype)))
    loading = partial(_load, model, dtype, settings, context)
    model_rows, figures = model_bench(loading, peaks, rate, rounds, clock, report)
    return {
        "schema": 1,
        "device": {"renderer": opened.renderer, "version": opened.version, "choice": as_dict(choice)} | peaks,
        "rows": rows + model_rows,
        "model": figures,
    }


def products(
    device: Device, kernel: Kernel, options: Options, m: int, peak: float, rounds: int, until: float = math.inf
) -> list[dict[str, Any]]:
    """Measures the product of matrices [m, 768] and [768, 3072], by the engine in each format and by two baselines.

    Returns a row of the report for each format and baseline. Each is measured with both GLSL functions that read texels
    (`FETCHES`); the row has the time with the faster one.
    """
    k, n = SHAPE
    random = np.random.default_rng(0)
    x, w = random.standard_normal((m, k), np.float32), random.standard_normal((k, n), np.float32)
    measure = Measure(device, rounds, until)
    own: list[Any] = []
    for fetch in FETCHES:
        chosen = Options(options.header, fetch, options.storage)
        for dtype in FORMATS:
            own.append(product_player(device, kernel, chosen, x, w, dtype))
            measure.add(f"{_product_name(dtype)}|{fetch}", lambda player=own[-1]: player.play("probe"))  # type: ignore[misc]
        for name in ("one_output", "block2x2"):
            own.append(Baseline(device, name, fetch, x, w))
            measure.add(f"{name}|{fetch}", own[-1].play)
    seconds = measure.seconds()
    for item in own:
        item.close()
    rows = []
    for name in (*map(_product_name, FORMATS), "one_output", "block2x2"):
        fetch = min(FETCHES, key=lambda f: seconds[f"{name}|{f}"])
        rows.append(
            _row(name, f"[{m},{k}]x[{k},{n}]", seconds[f"{name}|{fetch}"], 2 * m * k * n, peak) | {"fetch": fetch}
        )
    return rows


def _products(dtype: str | None) -> str:
    """Returns the format of the measured products with which the prefill of a model of this dtype is compared."""
    return "f16" if dtype == AS_STORED else dtype or "f32"


def _product_name(dtype: str) -> str:
    return "matmul" if dtype == "f32" else f"matmul {dtype}"


def product_player(
    device: Device, kernel: Kernel, options: Options, x: NDArray[np.float32], w: NDArray[np.float32], dtype: str
) -> Player:
    """Returns a player (it runs a recorded program) whose entry `probe` multiplies x by w with one kernel."""
    program = product_program(device.limits, kernel, dtype, (*x.shape, w.shape[1]))
    player = Player(device, program, options)
    for name, values in (("x", x), ("w", w)):
        player.write_matrix(name, program.views[name], values)
    return player


def _load(name: str | None, dtype: str | None, settings: DeviceSettings, context: int | None) -> LanguageModel:
    checkpoint: Any = Checkpoint.open(name) if name else RandomCheckpoint(models.default())
    return LanguageModel(checkpoint, None, dtype, settings=settings, context=context)


def model_bench(
    loading: Callable[[], LanguageModel],
    peaks: dict[str, float],
    rate: float,
    rounds: int,
    clock: Clock,
    report: Report,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Measures prefill and decode; returns rows of the report, and the model's memory, passes and loading time.

    `loading` loads the model. `rate` is the highest rate of the measured products in the model's format, in GFLOPS; the
    report gives the rate of prefill as a share of `rate`.
    """
    gc.collect()
    forget_peak()
    start = time.perf_counter()
    rows = []
    with loading() as model:
        load_s = time.perf_counter() - start
        c, player, info = model.config, model.player, model.info()
        measure, tokens = Measure(model.device, rounds, clock.at(1.0)), Readback(player, ("token",), 2)
        lengths = [t for t in (64, 512) if t <= c.context]
        chunks = {t: plan(t, c.context, recorded_sizes(player.program)) for t in lengths}
        first_s, usual = None, SAMPLERS[USUAL]
        if 64 in lengths and usual.entry:
            _prefill(player, chunks[64])
            player.play(usual.entry, **usual.scalars(64, c.vocab_size))
            tokens.start()
            tokens.take()
            first_s = time.perf_counter() - start
        contexts = [t for t in (64, 900) if t < c.context] or [c.context - 1]
        for t in list(lengths):
            likely = 5 * c.block_flops * t / rate / 1e9  # seconds of five plays: `add` does two, a round three
            if t > 64 and time.monotonic() + likely > clock.at(0.9):
                report(f"skipping the prefill of {t} tokens: it would take {likely:.0f} s; allow more with --seconds")
                lengths.remove(t)
                continue
            report(f"measuring a prompt of {t} tokens")
            measure.add(f"prefill {t}", partial(_prefill, player, chunks[t]))
        for t in contexts:
            report(f"measuring a token after {t} others")

            for what, sampler in SAMPLERS.items():

                def step(pos: int = t, sampler: Sampler = sampler) -> None:
                    player.play("decode", pos=pos)  # like `Decoder`: reads a token while the next one is computed
                    if sampler.entry:
                        player.play(sampler.entry, **sampler.scalars(pos, c.vocab_size))
                    tokens.start()
                    if tokens.full:
                        tokens.take()

                measure.add(f"{what} {t}", step)
        seconds = measure.seconds()
        host = host_seconds(player, rounds)
        for t in lengths:
            flops = c.block_flops * t + c.head_flops
            rows.append(_row("prefill", f"{t} tokens", seconds[f"prefill {t}"], flops, rate, "matmul"))
        f32_bytes = 4 * c.parameter_count
        weights = info["bytes_by_role"]["weight"]
        for what in SAMPLERS:
            for t in contexts:
                rows.append(_read_row(what, f"context {t}", seconds[f"{what} {t}"], weights, peaks["read_gbs"]))
        figures = {
            "name": model.name,
            "dtype": str(model.formats),
            "load_s": load_s,
            "passes": info["passes"],
            "host_pass_us": 1e6 * host / info["passes"]["decode"] - peaks["empty_pass_us"],
            "texture_bytes": model.device.texture_bytes,
            "announced_bytes": info["texture_bytes"],
            "bytes_by_role": info["bytes_by_role"],
            "peak_rss_bytes": peak_resident(),
            "f32_bytes": f32_bytes,
            "download_s": 8 * weights / DOWNLOAD_RATE,
            "first_token_s": first_s,
            "tokens_per_s": 1 / seconds[f"{USUAL} {contexts[0]}"],
        }
    return rows, figures


def _first(seconds: float | None) -> str:
    return "" if seconds is None else f"from local disk, {seconds:.1f} s to the first token of a 64-token prompt; "


def host_seconds(player: Player, rounds: int) -> float:
    """Returns the median seconds until `play` of a decode step returns.

    On software GL, most of the drawing happens before `play` returns.
    """
    times = []
    for _ in range(rounds + 1):
        player.finish()
        start = time.perf_counter()
        player.play("decode", pos=0)
        times.append(time.perf_counter() - start)
    player.finish()
    return statistics.median(times[1:])


def forget_peak() -> None:
    """Resets the peak of resident memory, if the system supports it (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _prefill(player: Player, chunks: Sequence[Chunk]) -> None:
    """Plays the prefill of a prompt whose tokens are all 0."""
    for chunk in chunks:
        player.play(chunk.entry, pos=chunk.start, row=chunk.valid - 1)


def peak_resident() -> int:
    """Returns the peak of resident memory in bytes; 0 if it is not known."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.split("VmHWM:")[1].split()[0])
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _row(name: str, shape: str, seconds: float, flops: int, peak: float, of: str = "fma") -> dict[str, Any]:
    gflops = flops / seconds / 1e9
    return {"name": name, "shape": shape, "ms": 1e3 * seconds, "gflops": gflops, "share": gflops / peak, "of": of}


def _read_row(name: str, shape: str, seconds: float, nbytes: int, peak: float) -> dict[str, Any]:
    gbs = nbytes / seconds / 1e9
    return {"name": name, "shape": shape, "ms": 1e3 * seconds, "gbs": gbs, "share": gbs / peak, "of": "read"}


def render(result: dict[str, Any]) -> str:
    """Formats the results as a text table."""
    d, m, c = result["device"], result["model"], result["device"]["choice"]
    lines = [
        f"{d['renderer']}: {d['fma_gflops']:.0f} GFLOPS of multiply-adds, reads {d['read_gbs']:.1f} GB/s, "
        f"empty pass {d['empty_pass_us']:.1f} us, binding textures {d['bound_pass_us']:.1f} us more",
        f"kernel {c['kernel']} with {c['fetch']}, "
        f"one-row products with {'contiguous' if c['contiguous'] else 'strided'} columns",
        "",
        f"{'measured':<12} {'shape':<22} {'ms':>10} {'rate':>14}  share",
    ]
    for r in result["rows"]:
        rate = f"{r['gflops']:.1f} GFLOPS" if "gflops" in r else f"{r['gbs']:.1f} GB/s"
        lines.append(f"{r['name']:<12} {r['shape']:<22} {r['ms']:>10.2f} {rate:>14}  {r['share']:.0%} of {r['of']}")
    roles = ", ".join(f"{k} {v / 2**20:.1f}" for k, v in m["bytes_by_role"].items())
    lines += [
        "",
        f"{m['name']} {m['dtype']}: loaded in {m['load_s']:.1f} s; {m['passes']['decode']} passes per token, "
        f"{m['host_pass_us']:.1f} us of host time per pass beyond that of an empty pass; "
        f"textures {m['texture_bytes'] / 2**20:.0f} MiB, announced before loading "
        f"{m['announced_bytes'] / 2**20:.0f} ({roles}); "
        f"peak resident memory {m['peak_rss_bytes'] / m['f32_bytes']:.2f}x the f32 weights",
        f"waiting time of a user: {m['bytes_by_role']['weight'] / 1e6:.0f} MB to download for a page, "
        f"{m['download_s']:.0f} s at {DOWNLOAD_RATE / 1e6:.0f} Mbit/s; {_first(m['first_token_s'])}"
        f"{m['tokens_per_s']:.1f} sampled tokens/s",
    ]
    return "\n".join(lines)
