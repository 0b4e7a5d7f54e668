"""Tests that kernel and fetch are the requested ones, or are chosen by a probe, which runs once per driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.probe import TIMES, remember_probe

from glgpt import ops
from glgpt.errors import DeviceError, GlgptError
from glgpt.gl.device import Device
from glgpt.gl.player import Options, Player
from glgpt.program.kernel import KERNELS, Kernel
from glgpt.program.layout import Layout
from glgpt.program.recorder import Recorder
from glgpt.program.spec import Limits
from glgpt.tuning import kernel_selection as tune
from glgpt.tuning.kernel_selection import COLUMNS, FETCHES, STORAGES, as_dict, cache_file, choose

NAMES = [f"{kernel} {fetch}" for kernel in KERNELS for fetch in FETCHES]
CONTIGUOUS_NAMES = [f"{kernel}-contiguous {fetch}" for kernel in ("4x4", "8x4") for fetch in FETCHES]
CONTIGUOUS_ROWS = tuple(f"contiguous {fetch}" for fetch in FETCHES)
ROW_NAMES = [f"{columns} {fetch}" for columns in COLUMNS for fetch in FETCHES]
ALL_NAMES = NAMES + CONTIGUOUS_NAMES + ROW_NAMES


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tune, "_unsteady", {})  # results that an earlier test measured on a busy machine
    return cache_file()


def test_the_tests_do_not_measure(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the prepared results in the cache are not found, so that each process measures for seconds."""
    monkeypatch.setattr(tune, "probe", no_probe)
    remember_probe()
    for storage in STORAGES:
        assert choose(device, storage=storage).measured == TIMES


def considered(contiguous: int) -> list[str]:
    """Returns the kernels and fetches from which "auto" chooses. With panels, kernels compute four columns."""
    return CONTIGUOUS_NAMES if contiguous else NAMES


def no_probe(*_: object) -> dict[str, float]:
    raise AssertionError("it measures again")


def fake_probe(monkeypatch: pytest.MonkeyPatch, *fastest: str) -> None:
    monkeypatch.setattr(tune, "probe", lambda *_: ({name: 1.0 + (name not in fastest) for name in ALL_NAMES}, True))


@pytest.mark.slow
def test_the_probe_measures_everything_once(device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if opening a device measures each time, or a kernel is missing."""
    monkeypatch.setattr(tune, "STEADY", float("inf"))  # even if the machine is busy
    first = choose(device)
    assert sorted(first.measured) == sorted(ALL_NAMES) and all(value > 0 for value in first.measured.values())
    names = considered(first.kernel.contiguous)
    best = min(names, key=lambda name: first.measured[name])
    assert best == f"{first.kernel.label} {first.options.fetch}" and f"fastest of {len(names)}" in first.why
    monkeypatch.setattr(tune, "probe", no_probe)
    assert choose(device) == first
    assert [path.name for path in cache.parent.iterdir()] == ["probe.json"]


def test_blending_is_drawn_until_it_works_once(device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the test of blending is repeated after a success, a failure is stored, or a damaged file is used."""
    drawn: list[bool] = []

    def drawing(result: bool) -> Callable[..., bool]:
        def draw(*_: object) -> bool:
            drawn.append(result)
            return result

        return draw

    remember_probe()
    options = choose(device).options
    cache.with_name("blending.json").write_text("{")
    for result in (False, True, False):
        monkeypatch.setattr(tune, "adds_by_blending", drawing(result))
        assert tune.known_to_blend(device, options) == (len(drawn) > 1)
    assert drawn == [False, True]
    other = replace(options, fetch="textureLod" if options.fetch == "texelFetch" else "texelFetch")
    assert not tune.known_to_blend(device, other) and not tune.known_to_blend(device, options, pairs=True)


def test_a_device_opens_without_its_caches(device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a device does not open because a folder is at the path of a cache file; no cache is needed."""
    measured = dict.fromkeys(ALL_NAMES, 1.0)
    monkeypatch.setattr(tune, "probe", lambda *_: (measured, True))
    monkeypatch.setattr(tune, "adds_by_blending", lambda *_: True)
    for path in (cache, cache.with_name("blending.json")):
        path.mkdir(parents=True)
    found = choose(device)
    assert found.measured == measured and tune.known_to_blend(device, found.options)
    assert not any(cache.iterdir())


def test_an_estimate_of_training_needs_no_measurement_of_blending(device: Device) -> None:
    """Fails if no time is estimated for a GPU that blends: the probe measures kernels without blending."""
    remember_probe()
    rec = Recorder()
    with rec.entry("product"):
        x, w = (rec.fixed(name, Layout(8, 8), "state") for name in "xw")
        ops.matmul(rec, x, w, None, "y")
    choice = choose(device)
    seconds = [
        tune.estimated_seconds(rec.program(), "product", replace(choice, kernel=kernel))
        for kernel in (Kernel(4, 2), Kernel(4, 2, blends=True, pairs=True))
    ]
    assert seconds[0] == seconds[1] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("held_up", "steady"), [({4}, True), ({5}, True), ({5, 7, 9, 11}, True), ({4, 6, 8, 10}, False)]
)
def test_other_work_decides_nothing(
    device: Device, cache: Path, monkeypatch: pytest.MonkeyPatch, held_up: set[int], steady: bool
) -> None:
    """Fails if other work makes a kernel look fast or slow, or results of a busy machine are cached."""
    calls: dict[Player, int] = {}

    def seconds(player: Player, times: int) -> float:
        """Returns 0.5 ms plus 1 ms per play; a player's runs whose number is in `held_up` take 50 ms longer."""
        calls[player] = calls.get(player, 0) + 1
        return 5e-4 + 1e-3 * times + 0.05 * (calls[player] in held_up)

    monkeypatch.setattr(tune, "_seconds", seconds)
    found = choose(device)
    assert all(ms == pytest.approx(1.0) for ms in found.measured.values()) and set(calls.values()) == {12}
    assert cache.exists() == steady


@pytest.mark.parametrize(
    ("fastest", "ways"),
    [(n, ()) for n in NAMES] + [(n, CONTIGUOUS_ROWS) for n in CONTIGUOUS_NAMES],
)
def test_the_fastest_is_chosen_among_what_is_allowed(
    device: Device, fastest: str, ways: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_probe(monkeypatch, fastest, *ways)
    kernel, fetch = fastest.replace("-contiguous", "").split()
    names, chosen = considered(len(ways)), choose(device)
    assert fastest == f"{chosen.kernel.label} {chosen.options.fetch}"
    for other in FETCHES:
        chosen = choose(device, fetch=other)
        assert chosen.options.fetch == other and f"fastest of {len(names) // 2}" in chosen.why
    for other in KERNELS:
        chosen = choose(device, kernel=other)
        assert chosen.kernel.name == other and "fastest of 2" in chosen.why
    assert choose(device, kernel).options.fetch == fetch


@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_asked_for_is_chosen(device: Device, storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_probe(monkeypatch, NAMES[0])
    for name in NAMES:
        chosen = choose(device, *name.split(), storage)
        assert chosen.kernel.name == name.split()[0] and chosen.why == "as requested"
        assert chosen.options == Options(fetch=name.split()[1], storage=storage, packing=not device.software)
        assert json.dumps(as_dict(chosen))


@pytest.mark.parametrize(
    ("strided", "contiguous", "texels"),
    [((2.0, 1.0), (1.5, 3.0), 0), ((2.0, 1.0), (0.9, 3.0), 0), ((2.0, 1.0), (0.7, 3.0), 4)],
)
def test_panels_are_taken_where_they_pay(
    device: Device,
    strided: tuple[float, float],
    contiguous: tuple[float, float],
    texels: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails if panels are chosen although they gain only 10%, or strided columns are faster with the other fetch."""
    found = dict.fromkeys(NAMES + CONTIGUOUS_NAMES, 1.0)
    for name, times in (("strided", strided), ("contiguous", contiguous)):
        found |= {f"{name} {fetch}": ms for fetch, ms in zip(FETCHES, times, strict=True)}
    monkeypatch.setattr(tune, "probe", lambda *_: (found, True))
    assert choose(device).kernel.contiguous == texels
    assert choose(device, fetch=FETCHES[0]).kernel.contiguous == 4
    assert choose(device, fetch=FETCHES[1]).kernel.contiguous == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kernel": "2x2"}, "kernel '2x2' is not one of auto, 4x4, 4x8, 8x4"),
        ({"fetch": "texture"}, "fetch 'texture' is not one of auto, texelFetch, textureLod"),
        ({"storage": "half"}, "storage 'half' is not one of auto, float, uint"),
    ],
)
def test_names_that_are_none_are_refused(device: Device, asked: dict[str, str], message: str) -> None:
    with pytest.raises(GlgptError, match=message):
        choose(device, **asked)


def test_four_draw_buffers_take_the_kernel_that_fits(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a device with four draw buffers, such as a Raspberry Pi, gets a kernel that writes eight outputs."""
    monkeypatch.setattr(device, "limits", replace(device.limits, max_draw_buffers=4))
    measured: list[list[str]] = []

    def probe(_: Device, __: Options, kernels: list[Kernel]) -> tuple[dict[str, float], bool]:
        measured.append([k.label for k in kernels])
        return {f"{name} {fetch}": 1.0 for name in (*measured[-1], *COLUMNS) for fetch in FETCHES}, True

    monkeypatch.setattr(tune, "probe", probe)
    assert choose(device).kernel.name == "4x4" and measured == [["4x4", "4x4-contiguous"]]
    with pytest.raises(GlgptError, match="kernel 8x4 needs more draw buffers than this device has"):
        choose(device, kernel="8x4")


def test_without_float_targets_tensors_are_stored_as_bits(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_probe(monkeypatch, NAMES[0])
    assert tune.renders_float(device) and choose(device).options.storage == "float"

    def refused(*_: object) -> None:
        raise DeviceError("no")

    with monkeypatch.context() as patch:
        patch.setattr(device, "framebuffer", refused)
        assert not tune.renders_float(device) and choose(device).options.storage == "uint"
        assert choose(device, "4x4", "texelFetch").options.storage == "uint"


DAMAGED = [
    "",
    "[]",
    "{",
    '{"x": 1}',
    "null",
    '{"x":' * 200_000,
    '{"x": ' + "[" * 900 + "]" * 900 + "}",
    "\\ud800",
    "\0",
]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_cache_only_means_measuring_again(
    device: Device, cache: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_probe(monkeypatch, NAMES[5])
    cache.parent.mkdir()
    cache.write_text(text)
    assert choose(device).measured[NAMES[5]] == 1.0
    monkeypatch.setattr(tune, "probe", no_probe)
    choose(device)


@pytest.mark.parametrize("value", ["{}", "7", '{"4x4 texelFetch": 1.0}', '{"4x4 texelFetch": "fast"}'])
def test_a_damaged_entry_only_means_measuring_again(
    device: Device, cache: Path, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_probe(monkeypatch, NAMES[5])
    choose(device)
    (key,) = json.loads(cache.read_text())
    cache.write_text(json.dumps({key: json.loads(value), "another driver": {"a": 1.0}}))
    assert choose(device).kernel.name == NAMES[5].split()[0]
    assert set(json.loads(cache.read_text())) == {key, "another driver"}


@pytest.mark.parametrize("number", ["9" * 400, "NaN", "Infinity", "-1", "1e400", "true", "0"])
def test_a_number_that_is_no_time_only_means_measuring_again(
    device: Device, cache: Path, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_probe(monkeypatch, NAMES[5])
    choose(device)
    cache.write_text(cache.read_text().replace(": 1.0", f": {number}"))
    assert choose(device).measured[NAMES[5]] == 1.0


def test_a_cache_that_cannot_be_written_is_no_error(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    fake_probe(monkeypatch, NAMES[1])
    assert choose(device).options.fetch == FETCHES[1]


@pytest.mark.parametrize(
    ("rows", "cols", "limits", "shape"),
    [
        (768, 3072, (16384, 2048), (32, 12 * 768, 2)),
        (768, 50257, (16384, 2048), (32, 21 * 768, 19)),
        (768, 50257, (1024, 256), (967, 768, 13)),  # more panels than layers
        (3072, 768, (2048, 256), (192, 1536, 2)),  # too many rows for a texture
    ],
)
def test_panels_are_rows_that_eight_fragments_read_whole(
    rows: int, cols: int, limits: tuple[int, int], shape: tuple[int, int, int]
) -> None:
    """Fails if a weight of GPT-2 is a single wide layer on software GL, or exceeds a device's layers or rows."""
    layout = ops.panels(Recorder(Limits(*limits)), rows, cols)
    assert (layout.texture_width, layout.texture_height, layout.layers) == shape


def test_panels_leave_room_for_scales() -> None:
    """Fails if panels are chosen for 3,072 rows of Q4_K: with the scales' rows, they exceed a texture of 4,096 rows."""
    layout = ops.panels(Recorder(), 3072, 1024, "q4_k")
    assert layout.panel == 0 and layout.texture_height <= 4096
