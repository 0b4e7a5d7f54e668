"""Tests `glgpt bench`: its results, its time limit, and its progress messages."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from helpers.command_line import Capture, refused

from glgpt.bench import engine as bench
from glgpt.bench.peaks import Measure
from glgpt.checkpoint import stored_weights
from glgpt.cli import main
from glgpt.gl.device import Device
from glgpt.models import family

WIDE = str(Path(__file__).parents[1] / "goldens/wide")


def test_bench_runs_and_prints(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    seen: dict[str, object] = {}

    def run_bench(model: str | None, **options: object) -> dict[str, object]:
        seen.update(options, model=model)
        return {"rows": []}

    monkeypatch.setattr(bench, "run_bench", run_bench)
    assert main(["bench", "--model", WIDE, "--quick", "--kernel", "4x4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"rows": []}
    assert (seen["model"], seen["quick"], seen["kernel"], seen["device"]) == (WIDE, True, "4x4", "auto")
    assert "max-texture-memory" in refused(capsys, "bench", "--max-texture-memory", "1GiB")


def test_bench_looks_for_its_model_first(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(bench, "device_peaks", lambda *_: pytest.fail("measured before the model was looked for"))
    assert "'/nope' is neither a folder nor a valid model name" in refused(capsys, "bench", "--model", "/nope")


@pytest.mark.slow
def test_bench_says_what_it_does_and_keeps_to_its_time(
    goldens: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """Fails if `--seconds` does not limit what is measured, or progress is printed only if stderr is a terminal."""
    asked: list[int] = []

    def products(_device: object, _kernel: object, _options: object, m: int, *_: object) -> list[dict[str, object]]:
        asked.append(m)
        time.sleep(0.4)
        return [{"name": "matmul", "gflops": 1.0}]

    monkeypatch.setattr(
        bench, "device_peaks", lambda *_: dict.fromkeys(("fma_gflops", "read_gbs", "empty_pass_us"), 1.0)
    )
    monkeypatch.setattr(bench, "products", products)
    model = ["--model", str(goldens / "one-f16"), "--device", "software"]
    assert main(["bench", "--seconds", "3", "--json", *model]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row for row in found["rows"] if row["name"].startswith("decode")]
    waits, usual = found["model"], next(row for row in found["rows"] if row["name"] == "+ top-p 0.9")
    assert waits["tokens_per_s"] == pytest.approx(1e3 / usual["ms"])
    assert waits["first_token_s"] is None  # the model's context is too short for a prompt of 64
    assert waits["download_s"] == pytest.approx(waits["bytes_by_role"]["weight"] / 6.25e6)
    asked.clear()
    monkeypatch.setattr(bench, "model_bench", lambda *_: ([], {}))
    assert main(["bench", "--seconds", "2", "--json"]) == 0
    err = capsys.readouterr().err
    assert (
        asked == [64] and "measuring products of 64 rows" in err and "skipping products of 256 rows: they would" in err
    )
    asked.clear()
    assert main(["bench", "--seconds", "100", "--json"]) == 0
    assert asked == [64, 256, 1024] and "no products" not in capsys.readouterr().err


def test_bench_needs_no_model(device: Device, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Fails if `bench` needs an attribute that a model of random weights does not have."""
    small = family("gpt2")(vocab_size=200, n_positions=128, n_embd=32, n_layer=1, n_head=2)
    monkeypatch.setattr(bench.models, "default", lambda: small)
    monkeypatch.setattr(stored_weights, "available_processors", lambda: 4)
    peaks = dict.fromkeys(("fma_gflops", "read_gbs", "empty_pass_us"), 1.0)
    monkeypatch.setattr(bench, "device_peaks", lambda *_: peaks)
    monkeypatch.setattr(bench, "products", lambda *_: [{"name": "matmul", "gflops": 1.0}])
    assert main(["bench", "--quick", "--seconds", "1", "--json", "--device", "software"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["name"] == "random-124M"


def test_a_measurement_ends_in_time(device: Device) -> None:
    played: list[float] = []
    measure = Measure(device, 50, time.monotonic() + 0.3)
    measure.add("slow", lambda: (played.append(0.0), time.sleep(0.05)), repeats=1)
    assert measure.seconds()["slow"] > 0 and 1 < len(played) < 20
