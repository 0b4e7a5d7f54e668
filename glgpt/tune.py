"""Choosing how a device fetches texels and which kernel its products use, by measuring once per driver."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from moderngl import TextureArray

from glgpt import ops
from glgpt.errors import GlgptError
from glgpt.gl.device import Device, Options
from glgpt.gl.player import Player
from glgpt.program import Limits
from glgpt.record import KERNELS, Kernel, Recorder, Tensor
from glgpt.tensor import Layout

FETCHES = ("texelFetch", "textureLod")
STORAGES = ("float", "uint")
PROBE = (64, 256, 1024)  # M, K, N of the probe's product: a few milliseconds on software GL
ROWS = {"apart": 0, "near": 2}  # how a one-row product takes its columns (`ops.matvec`)
ROW_PROBE = (3072, 768, 4)  # K, N of the probe's one-row products, and how many weights in turn, to leave the caches
VERSION = 4  # of what a remembered probe means


@dataclass(frozen=True)
class Choice:
    """A kernel, how shaders are built, and why; `measured` is milliseconds of the probe by "kernel fetch"."""

    kernel: Kernel
    options: Options
    why: str
    measured: dict[str, float]


def choose(device: Device, kernel: str = "auto", fetch: str = "auto", storage: str = "auto") -> Choice:
    """The fastest kernel and fetch on this device, or those asked for.

    Raises GlgptError for a name that is not one, or a kernel the device has too few draw buffers for.
    """
    for name, value, known in (
        ("kernel", kernel, (*KERNELS,)),
        ("fetch", fetch, FETCHES),
        ("storage", storage, STORAGES),
    ):
        if value != "auto" and value not in known:
            raise GlgptError(f"{name} {value!r} is not one of auto, {', '.join(known)}")
    options = Options(header=device.header, storage="float" if storage == "auto" else storage)
    fitting = {k: v for k, v in KERNELS.items() if v.tile_rows * v.tile_cols <= device.limits.max_draw_buffers}
    if kernel != "auto" and kernel not in fitting:
        raise GlgptError(f"kernel {kernel} needs more draw buffers than the {device.limits.max_draw_buffers} here")
    if storage == "auto" and not renders_float(device):
        options = replace(options, storage="uint")
    kernels = list(fitting) if kernel == "auto" else [kernel]
    fetches = list(FETCHES) if fetch == "auto" else [fetch]
    measured = _remembered(device, options, list(fitting))
    among = {f"{k} {f}": measured[f"{k} {f}"] for k in kernels for f in fetches}
    best = min(among, key=lambda name: among[name])
    name, fetch = best.split()
    near = ROWS[min(ROWS, key=lambda way: measured[f"{way} {fetch}"])]
    why = f"fastest of {len(among)} in the probe, {among[best]:.2f} ms" if len(among) > 1 else "as asked for"
    return Choice(replace(KERNELS[name], near=near), replace(options, fetch=fetch), why, measured)


def renders_float(device: Device) -> bool:
    """Whether the device renders to RGBA32F; without it, tensors live bit for bit in RGBA32UI."""
    device.use()
    texture = device.texture("probe", 1, 1, 1, "float")
    try:
        device.release(device.framebuffer([(texture, 0)]))
        return True
    except GlgptError:
        return False
    finally:
        device.release(texture)


def cache_file() -> Path:
    """Where probes are remembered: `$XDG_CACHE_HOME/glgpt/probe.json`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "glgpt" / "probe.json"


def _remembered(device: Device, options: Options, kernels: list[str]) -> dict[str, float]:
    key = f"{VERSION} {device.renderer} {device.version} {options.header} {options.storage}"
    try:
        known = json.loads(cache_file().read_text())
    except (OSError, ValueError):
        known = {}
    if isinstance(known, dict) and isinstance(known.get(key), dict):
        found = known[key]
        if all(isinstance(found.get(f"{k} {f}"), (int, float)) for k in (*kernels, *ROWS) for f in FETCHES):
            return {str(k): float(v) for k, v in found.items()}
    measured = probe(device, options, kernels)
    known = (known if isinstance(known, dict) else {}) | {key: measured}
    try:  # a home that cannot be written only means measuring again
        cache_file().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=cache_file().parent, delete=False) as file:
            json.dump(known, file, indent=1)
        Path(file.name).replace(cache_file())
    except OSError:
        pass
    return measured


def probe(device: Device, options: Options, kernels: list[str]) -> dict[str, float]:
    """Milliseconds of one product for each "kernel fetch": the median of interleaved slopes over repeats."""
    players: dict[str, Player] = {}
    times: dict[str, list[float]] = {}
    weights: Mapping[str, TextureArray] = {}  # of the one-row products: one set for all
    try:
        for fetch in FETCHES:
            chosen = replace(options, fetch=fetch)
            for name in kernels:
                players[f"{name} {fetch}"] = _product(device, KERNELS[name], chosen)
            for name, near in ROWS.items():
                players[f"{name} {fetch}"] = _row_product(device, near, chosen, weights)
                weights = weights or players[f"{name} {fetch}"].shared("state")
        for turn in range(6):
            for name, player in players.items():
                elapsed = slope(player, "probe", 2)
                if turn:  # the first turn compiles
                    times.setdefault(name, []).append(1e3 * elapsed)
    finally:
        for player in reversed(players.values()):
            player.close()
    return {name: statistics.median(values) for name, values in times.items()}


def slope(player: Player, entry: str, repeats: int) -> float:
    """Seconds of one play: the difference between `1 + repeats` plays and one, so that fixed costs cancel."""

    def run(times: int) -> float:
        player.finish()
        start = time.perf_counter()
        for _ in range(times):
            player.play(entry)
        player.finish()
        return time.perf_counter() - start

    once = run(1)
    return max(run(1 + repeats) - once, 1e-9) / repeats


def _product(device: Device, kernel: Kernel, options: Options) -> Player:
    m, k, n = PROBE
    rec = Recorder(Limits(max_draw_buffers=device.limits.max_draw_buffers))
    x = rec.fixed("x", Layout(m, k, (kernel.tile_rows, kernel.tile_cols)), "state")
    w = rec.fixed("w", Layout(k, n), "state")
    with rec.entry("probe"):
        rec.output(ops.matmul(rec, x, w, None, "y", tile_cols=kernel.tile_cols))
    return _filled(Player(device, rec.program(), options), [x, w])


def _row_product(device: Device, near: int, options: Options, shared: Mapping[str, TextureArray]) -> Player:
    k, n, count = ROW_PROBE
    rec = Recorder()
    x = rec.fixed("x", Layout(1, k), "state")
    weights = [rec.fixed(f"w.{i}", Layout(k, n), "state") for i in range(count)]
    with rec.entry("probe"):
        for w in weights:
            rec.output(ops.matvec(rec, x, w, f"y.{w.name}", near=near).tensor)
    return _filled(Player(device, rec.program(), options, shared), [] if shared else [x, *weights])


def _filled(player: Player, tensors: list[Tensor]) -> Player:
    random = np.random.default_rng(0)
    for t in tensors:
        player.write_matrix(t.name, t.layout, random.standard_normal((t.rows, t.cols), np.float32))
    return player


def as_dict(choice: Choice) -> dict[str, object]:
    """A choice as plain data, for `glgpt info`."""
    return {
        "kernel": choice.kernel.name,
        "near": choice.kernel.near,
        **asdict(choice.options),
        "why": choice.why,
        "probe_ms": choice.measured,
    }
