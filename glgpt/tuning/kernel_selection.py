"""Chooses how a device fetches texels and which kernel its products use, by a probe that measures once per driver."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from moderngl import TextureArray
from numpy.typing import NDArray

from glgpt import ops
from glgpt.errors import DeviceError, GlgptError
from glgpt.gl.device import Device, Options, open_device
from glgpt.gl.player import Player
from glgpt.program.formats import FORMATS
from glgpt.program.kernel import KERNELS, Kernel
from glgpt.program.layout import Layout, fold
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits, Program
from glgpt.system.files import cache_path, read_cache, write_cache

FETCHES = ("texelFetch", "textureLod")
STORAGES = ("float", "uint")
CACHE_DTYPES = ("f32", "f16")
PROBE = (64, 256, 1024)  # M, K, N of the probe's product: a few milliseconds on software GL
COLUMNS = {"strided": 0, "contiguous": ops.CONTIGUOUS}  # name -> `Kernel.contiguous`, for one-row products
# Panels (weights stored in strips of neighbouring columns) are used if a one-row product takes less than this fraction
# of its time with strided columns.
PANELS_PAY = 0.8
# K, N of the probe's one-row products, and the number of their weights (more than processor caches can hold)
ROW_PROBE = (3072, 768, 4)
ADDED = 16  # number of values that a device adds up in the test of blending
MIN_PROBE_S = 0.003  # intended seconds of a long run of the probe, which has 3 to 65 plays
STEADY = 1.3  # maximum ratio of the times of a product's two fastest long runs; a larger one means a busy machine
VERSION = 11  # version of the cached results of the probe (probe.json) and of the test of blending (blending.json)
MAX_CACHE_BYTES = 1 << 20  # maximum bytes of a cache file, enough for thousands of drivers
_unsteady: dict[str, dict[str, float]] = {}  # results measured on a busy machine: used by this process, not cached


@dataclass(frozen=True)
class Choice:
    """The chosen kernel, the options of shaders, and the reason `why` they were chosen.

    `measured` has the milliseconds that the probe measured. A key is the label of a kernel or a name in `COLUMNS`,
    followed by a fetch, such as "4x8 texelFetch" (`measured_names`).
    """

    kernel: Kernel
    options: Options
    why: str
    measured: dict[str, float]


@dataclass(frozen=True)
class DeviceSettings:
    """The device to use, and its settings; those that are "auto" are chosen by measurements and tests of the device.

    `device` is "auto", "software", "gpu" or an EGL index; `kernel`, `fetch` and `storage` are names that `glgpt info`
    lists. `cache_dtype` is the format of keys and values in the caches, "f32" or "f16"; "auto" is f32, except in pages
    with quantised weights, where it is f16.
    """

    device: str | int = "auto"
    kernel: str = "auto"
    fetch: str = "auto"
    storage: str = "auto"
    cache_dtype: str = "auto"

    def __post_init__(self) -> None:
        """Checks the format of the caches. Raises GlgptError for an unknown name."""
        _check_name("cache_dtype", self.cache_dtype, CACHE_DTYPES)

    @property
    def half_caches(self) -> bool:
        """True if the caches of a model on this device hold 16-bit floats."""
        return self.cache_dtype == "f16"

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> DeviceSettings:
        """Removes the settings of a device from the keyword arguments `options`, and returns these settings."""
        return cls(**{f.name: options.pop(f.name) for f in fields(cls) if f.name in options})

    def open(self) -> tuple[Device, Choice]:
        """Opens the device and chooses its kernel and fetch. Raises GlgptError like `open_device` and `choose`."""
        device = open_device(self.device)
        return device, choose(device, self.kernel, self.fetch, self.storage)


def _check_name(setting: str, name: str, known: Sequence[str]) -> None:
    """Raises GlgptError unless a setting is "auto" or one of the known names."""
    if name != "auto" and name not in known:
        raise GlgptError(f"{setting} {name!r} is not one of auto, {', '.join(known)}")


def choose(device: Device, kernel: str = "auto", fetch: str = "auto", storage: str = "auto") -> Choice:
    """Returns the fastest kernel and fetch on this device; an argument other than "auto" is used as given.

    Raises GlgptError for an unknown name, or for a kernel that needs more draw buffers than the device has.
    """
    for name, value, known in (
        ("kernel", kernel, (*KERNELS,)),
        ("fetch", fetch, FETCHES),
        ("storage", storage, STORAGES),
    ):
        _check_name(name, value, known)
    # Mesa's built-in conversion of float16 is slower in its software drivers than integer operations in the shader.
    texels = "float" if storage == "auto" else storage
    options = Options(header=device.header, storage=texels, packing=device.packing and not device.software)
    fitting = {k: v for k, v in KERNELS.items() if v.tile_rows * v.tile_cols <= device.limits.max_draw_buffers}
    if kernel != "auto" and kernel not in fitting:
        raise GlgptError(
            f"kernel {kernel} needs more draw buffers than this device has ({device.limits.max_draw_buffers}); "
            f"use {', '.join(fitting) or 'auto'}"
        )
    if storage == "auto" and not renders_float(device):
        options = replace(options, storage="uint")
    fetches = list(FETCHES) if fetch == "auto" else [fetch]
    measured = _remembered(device, options, variants(fitting.values()))
    rows = {name: min(measured[f"{name} {f}"] for f in fetches) for name in COLUMNS}
    contiguous = COLUMNS["contiguous"] if rows["contiguous"] < PANELS_PAY * rows["strided"] else 0
    asked = variants(k for name, k in fitting.items() if kernel in ("auto", name))
    kernels = [k for k in asked if k.contiguous == contiguous] or asked
    among = {(k, f): measured[f"{k.label} {f}"] for k in kernels for f in fetches}
    chosen, fetch = min(among, key=lambda pair: among[pair])
    which = f"{len(among)} with contiguous columns" if contiguous else str(len(among))
    fastest = f"fastest of {which} in the probe, {among[chosen, fetch]:.2f} ms"
    why = fastest if len(among) > 1 else "as requested"
    options = replace(options, fetch=fetch)
    gpu = options.storage == "float" and not contiguous and not device.software
    blends = gpu and known_to_blend(device, options)
    chosen = replace(chosen, blends=blends, pairs=blends and known_to_blend(device, options, pairs=True))
    return Choice(chosen, options, why, measured)


def variants(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Returns each kernel with strided columns; one that has one column tile is also returned with contiguous columns.

    With contiguous columns, weights are in panels, and a second column tile would read distant rows of memory.
    """
    return [replace(k, contiguous=n) for k in kernels for n in COLUMNS.values() if not n or k.tile_cols == 1]


def known_to_blend(device: Device, options: Options, pairs: bool = False) -> bool:
    """Returns `adds_by_blending`. Caches only True, per driver, since the test must compile a shader."""
    key = f"{probe_key(device, options)} {options.fetch}{' pairs' if pairs else ''}"
    file = cache_path() / "blending.json"
    known = read_cache(file, MAX_CACHE_BYTES)
    if known.get(key) is True:
        return True
    if not adds_by_blending(device, options, pairs):
        return False
    write_cache(file, known | {key: True})
    return True


def adds_by_blending(device: Device, options: Options, pairs: bool = False) -> bool:
    """True if blending gives exactly the sum that adding floats one after the other gives; draws a sum to test this.

    False if the device has fewer than eight draw buffers, which blended products need. With `pairs`, two pixels add up
    their terms before blending, which works only if the device computes derivatives separately for each column of a
    quad. Software drivers pass both tests, but on these it is faster to add up partial sums in another pass.
    """
    if device.limits.max_draw_buffers < 8:
        return False
    length, cols, strides = 4 * ops.SLICE_TEXELS, ops.STREAM_UNIT, 2
    random, shape = np.random.default_rng(0), (ADDED // 2, 2, cols)
    terms = (random.standard_normal(shape) * 10.0 ** random.integers(-3, 4, shape)).astype(np.float32)
    rec = Recorder()
    states = {"x": Layout(1, cols), "ones": Layout(1, ADDED * length), "w": fold(ADDED * length, cols, 4096)}
    zeros, ones, w = (rec.fixed(name, layout, "state") for name, layout in states.items())
    with rec.entry("probe"):
        x = ops.stream(rec, zeros, strides, 0.0, True, 0.0, None, pairs)
        ops.add_product(rec, ones, w, None, x, "sum")
        rec.output(x.x, "sum")
    program = rec.program()
    weights = np.zeros((ADDED // 2, 2 * length, cols), np.float32)
    weights[:, [0, 4 if pairs else length]] = terms  # in each slice, only the first product is not zero
    with Player(device, program, options) as player:
        player.write_matrix("ones", states["ones"], np.ones((1, ADDED * length), np.float32))
        player.write_matrix("w", states["w"], weights.reshape(-1, cols))
        player.play("probe")
        found = player.read(program.entries["probe"].outputs["sum"].texture)
    drawn = (found[0, :strides] if pairs else found[:, 0]).ravel()
    return bool(np.array_equal(drawn, _sums_of_pairs(terms) if pairs else _sums(terms.reshape(-1, cols))))


def _sums(terms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the sum of all rows, added one after the other."""
    total = np.zeros(terms.shape[1], np.float32)
    for row in terms:
        total += row
    return total


def _sums_of_pairs(terms: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the sum of all rows, in which pairs of rows are first added up as in `pair.glsl`.

    The lower pixel of a pair has the first half of the columns, and the upper pixel has the second half.
    """
    a, b = terms[:, 0], terms[:, 1]
    lower, upper = np.float32(2) * a + (b - a), np.float32(2) * b - (b - a)
    half = terms.shape[-1] // 2
    return _sums(np.concatenate([lower[:, :half], upper[:, half:]], axis=1))


def renders_float(device: Device) -> bool:
    """True if the device can render to RGBA32F; if it cannot, the bits of floats are stored in RGBA32UI."""
    device.use()
    texture = device.texture("probe", 1, 1, 1, "float")
    try:
        device.release(device.framebuffer([(texture, 0)]))
        return True
    except DeviceError:
        return False
    finally:
        device.release(texture)


def cache_file() -> Path:
    """Returns the path of the cached probe results: `$XDG_CACHE_HOME/glgpt/probe.json`."""
    return cache_path() / "probe.json"


def probe_key(device: Device, options: Options) -> str:
    """Returns the key under which the probe's results for a driver are cached."""
    return f"{VERSION} {device.renderer} {device.version} {options.header} {options.storage}"


def measured_names(kernels: Iterable[Kernel]) -> list[str]:
    """Returns the names of what the probe measures: "kernel fetch" and "columns fetch" in all combinations."""
    return [f"{label} {f}" for label in (*(k.label for k in kernels), *COLUMNS) for f in FETCHES]


def _remembered(device: Device, options: Options, kernels: Sequence[Kernel]) -> dict[str, float]:
    key, names = probe_key(device, options), measured_names(kernels)
    known = remembered_probes()
    for found in (known.get(key), _unsteady.get(key)):
        if found and all(name in found for name in names):
            return found
    measured, steady = probe(device, options, kernels)
    if not steady:
        _unsteady[key] = measured
        return measured
    write_cache(cache_file(), known | {key: measured})
    return measured


def remembered_probes() -> dict[str, dict[str, float]]:
    """Returns the cached results of earlier probes by `probe_key`; skips damaged entries of the file."""
    known = read_cache(cache_file(), MAX_CACHE_BYTES)
    return {key: found for key, found in known.items() if isinstance(found, dict) and _are_times(found.values())}


def _are_times(values: Iterable[object]) -> bool:
    """True if all values are plausible milliseconds of a probe."""
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < 1e9 for v in values)


def probe(device: Device, options: Options, kernels: Sequence[Kernel]) -> tuple[dict[str, float], bool]:
    """Measures products; returns their milliseconds by `measured_names`, and True if the results may be cached.

    They may not be cached if the machine was busy. Other work on the machine can only add time, so the fastest of
    several runs is used. The time of a product excludes fixed costs: it is the time of the fastest long run minus
    that of the fastest short run, divided by the number of further plays in the long run. The runs of the products
    alternate.
    """
    players: dict[str, Player] = {}
    # Number of further plays in a long run, seconds of the short runs, seconds of the long runs
    runs: dict[str, tuple[int, list[float], list[float]]] = {}
    weights: dict[int, Mapping[str, TextureArray]] = {}  # weights of the one-row products, by `contiguous`
    size = min(Limits().max_texture_size, device.limits.max_texture_size)
    limits = Limits(size, max_draw_buffers=device.limits.max_draw_buffers)
    try:
        for fetch in FETCHES:
            chosen = replace(options, fetch=fetch)
            for kernel in kernels:
                program = product_program(limits, kernel)
                players[f"{kernel.label} {fetch}"] = _filled(Player(device, program, chosen))
            for name, contiguous in COLUMNS.items():
                program = row_product_program(contiguous, limits=limits)
                player = Player(device, program, chosen, weights.get(contiguous, {}))
                players[f"{name} {fetch}"] = player if contiguous in weights else _filled(player)
                weights.setdefault(contiguous, player.shared("state"))
        for name, player in players.items():
            _seconds(player, 1)  # the first play compiles
            runs[name] = max(2, min(64, int(MIN_PROBE_S / _seconds(player, 1)))), [], []
        for _ in range(5):
            for name, player in players.items():
                more, short, long = runs[name]
                short.append(_seconds(player, 1))
                long.append(_seconds(player, 1 + more))
    finally:
        for player in reversed(players.values()):
            player.close()
    ms = {name: 1e3 * max(min(long) - min(short), 1e-9) / more for name, (more, short, long) in runs.items()}
    return ms, all(sorted(long)[1] < STEADY * min(long) for _, _, long in runs.values())


def estimated_seconds(program: Program, entry: str, choice: Choice) -> float:
    """Estimates how long an entry takes, from the operations of its products and the texels that it reads and writes.

    The speeds are those that the probe measured.
    """
    (rows, inner, columns), (row_inner, row_columns, _) = PROBE, ROW_PROBE
    fetch = choice.options.fetch
    flops_per_s = 2e3 * rows * inner * columns / choice.measured[f"{choice.kernel.unblended.label} {fetch}"]
    bytes_per_s = 4e3 * row_inner * row_columns / min(choice.measured[f"{name} {fetch}"] for name in COLUMNS)
    passes = program.entries[entry].passes
    written = sum(16 * p.viewport[0] * p.viewport[1] * len(p.outputs) for p in passes)
    read = sum(program.textures[name].nbytes for p in passes for _, name in p.inputs)
    return sum(p.flops for p in passes) / flops_per_s + (written + read) / bytes_per_s


def _seconds(player: Player, times: int) -> float:
    player.finish()
    start = time.perf_counter()
    for _ in range(times):
        player.play("probe")
    player.finish()
    return time.perf_counter() - start


def product_program(limits: Limits, kernel: Kernel, dtype: str = "f32", shape: tuple[int, int, int] = PROBE) -> Program:
    """Returns a program whose entry `probe` multiplies the states x `[M, K]` and w `[K, N]`; `shape` is (M, K, N).

    The states are stored as in a model with weights of `dtype`.
    """
    m, k, n = shape
    rec = Recorder(limits)
    rows = FORMATS[dtype].activations or dtype
    kernel = kernel.for_format(FORMATS[rows], limits)
    x = rec.fixed("x", Layout(m, k, (kernel.tile_rows, kernel.tile_cols), rows), "state")
    w = rec.fixed("w", _weight(rec, k, n, dtype, kernel.contiguous), "state")
    with rec.entry("probe"):
        rec.output(ops.matmul(rec, x, w, None, "y", dtype=rows, tile_cols=kernel.tile_cols))
    return rec.program()


def row_product_program(contiguous: int, dtype: str = "f32", limits: Limits | None = None) -> Program:
    """Returns a program whose entry `probe` multiplies a row by weights that together exceed a processor's caches."""
    k, n, count = ROW_PROBE
    rec = Recorder(limits)
    x = rec.fixed("x", Layout(1, k), "state")
    layout = _weight(rec, k, n, dtype, contiguous)
    with rec.entry("probe"):
        for i in range(count):
            w = rec.fixed(f"w.{i}", layout, "state")
            rec.output(ops.matvec(rec, x, w, f"y.{i}", contiguous=contiguous).tensor)
    return rec.program()


def _weight(rec: Recorder, k: int, n: int, dtype: str, contiguous: int) -> Layout:
    """Returns the layout of a weight `[k, n]` in a model with weights of `dtype`."""
    if contiguous:
        return ops.panels(rec, k, n, dtype)
    return fold(k, n, rec.limits.max_texture_size, dtype=dtype)


def _filled(player: Player) -> Player:
    random = np.random.default_rng(0)
    for name, view in player.program.views.items():
        player.write_matrix(name, view, random.standard_normal((view.rows, view.cols), np.float32))
    return player


def as_dict(choice: Choice) -> dict[str, object]:
    """Returns a choice as plain data, for `glgpt info`."""
    return {
        "kernel": choice.kernel.name,
        "label": choice.kernel.unblended.label,  # as in the names of `probe_ms`
        "contiguous": choice.kernel.contiguous,
        **asdict(choice.options),
        "why": choice.why,
        "probe_ms": choice.measured,
    }
