"""Tests that the cost of a format, its loss of accuracy, is measured once, and that measuring never stops a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.reference import random_weights, save_checkpoint

from glgpt.checkpoint.opening import Checkpoint
from glgpt.cli import format_check, main
from glgpt.errors import GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.inspection import format_cost
from glgpt.inspection.format_cost import NotMeasuredError, cache_file, measure_cost, remembered_cost
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.tuning.kernel_selection import DeviceSettings

CONFIG = GPT2Config(vocab_size=64, n_positions=32, n_embd=128, n_layer=2, n_head=4)
SOFTWARE = DeviceSettings(device="software")
CHANGES = "q4 changes the model's predictions: the KL divergence from f32 is "


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates a cache folder that has no measured costs, only the results of the device's probe."""
    probe = cache_file().with_name("probe.json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if probe.is_file():
        cache_file().parent.mkdir(parents=True)
        cache_file().with_name("probe.json").write_bytes(probe.read_bytes())
    return cache_file()


@pytest.fixture(scope="module")
def outliers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a model with large weights in each group of rows, so that four bits barely distinguish the small ones."""
    weights = random_weights(CONFIG, spread=0.1)
    for name, values in weights.items():
        if values.ndim == 2 and name.startswith("h."):
            values[::32] += 6
    return save_checkpoint(tmp_path_factory.mktemp("models") / "outliers", CONFIG, weights)


def generate(folder: Path, dtype: str, *more: str) -> int:
    return main(["generate", "--model", str(folder), "--ids", "1,2", "--tokens", "1", "--dtype", dtype,
                 "--device", "software", "--seed", "1", *more])  # fmt: skip


def loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a model was loaded to compare formats")

    monkeypatch.setattr(format_cost, "LanguageModel", refuse)


def test_a_lossy_format_is_warned_of_each_time_and_measured_once(
    outliers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if a command in q4 does not warn that q4 changes the model, or measures the cost twice."""
    for measured in (False, True):
        if measured:
            loads_no_model(monkeypatch)
        assert generate(outliers, "q4") == 0
        err = capsys.readouterr().err
        assert err.count(f"glgpt: warning: {CHANGES}") == 1 and "closer to f32: --dtype q8, f16, f32" in err
    (cost,) = json.loads(cache_file().read_text()).values()
    assert cost["kl"] > 0.05 and cost["tokens"] == 32
    assert generate(outliers, "q4", "--no-check") == 0 and "warning" not in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8"])
def test_a_close_format_is_not_warned_of(outliers: Path, dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(outliers, dtype) == 0
    assert "warning" not in capsys.readouterr().err
    assert cache_file().is_file() == (dtype != "f32")


def test_a_cost_is_measured_without_its_cache(outliers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if a folder at the path of the cache ends the command."""
    cache_file().mkdir(parents=True)
    assert generate(outliers, "q4") == 0 and CHANGES in capsys.readouterr().err


def test_a_short_context_and_several_samples_are_measured(outliers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails if the text for the measurement is longer than the requested context."""
    assert generate(outliers, "q4", "--context", "20", "--samples", "2") == 0
    assert capsys.readouterr().err.count(CHANGES) == 1
    (cost,) = json.loads(cache_file().read_text()).values()
    assert cost["tokens"] == 20


def test_an_export_measures_too(
    outliers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = {"model": "m", "dtype": "q4", "stored": None, "shards": []}
    monkeypatch.setattr("glgpt.page.export.export", lambda *_, **__: manifest)
    args = [
        "export",
        "--model",
        str(outliers),
        "--dtype",
        "q4",
        "--device",
        "software",
        "--out",
        str(tmp_path / "page"),
        "--json",
    ]
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert CHANGES in err and json.loads(out)["kl"] > 0.05


def test_a_large_model_is_compared_on_request(
    outliers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if the first text waits minutes for a comparison that was not requested."""
    monkeypatch.setattr(format_check, "MAX_UNASKED_PARAMETERS", 1000)
    assert generate(outliers, "q4") == 0
    assert "q4 was not compared with f32, which takes minutes" in capsys.readouterr().err and not cache_file().exists()
    assert generate(outliers, "q4", "--check") == 0 and CHANGES in capsys.readouterr().err
    assert generate(outliers, "q4") == 0 and CHANGES in capsys.readouterr().err


def test_f32_that_does_not_fit_is_reported(
    outliers: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails if a model is loaded for a comparison although its f32 weights exceed the free memory."""
    monkeypatch.setattr(format_cost, "available_memory", lambda: 1000)
    loads_no_model(monkeypatch)
    assert generate(outliers, "q4") == 0
    assert "warning: q4 was not compared with f32: f32 needs 0.0 GiB of memory, and 0.0 GiB are free" in (
        capsys.readouterr().err
    )
    with Checkpoint.open(outliers) as checkpoint, pytest.raises(NotMeasuredError):
        measure_cost(checkpoint, "q4", settings=SOFTWARE)


def test_a_damaged_memory_is_measured_again(outliers: Path) -> None:
    with Checkpoint.open(outliers) as checkpoint:
        cost = measure_cost(checkpoint, "q8", settings=SOFTWARE)
        assert remembered_cost(checkpoint, "q8") == cost and remembered_cost(checkpoint, "q4") is None
        (key,) = json.loads(cache_file().read_text())
        for damaged in (
            "",
            "[]",
            json.dumps({key: 1}),
            json.dumps({key: {"kl": "x"}}),
            json.dumps({key: {"kl": None}}),
        ):
            cache_file().write_text(damaged)
            assert remembered_cost(checkpoint, "q8") is None


def test_other_weights_are_another_model(outliers: Path, tmp_path: Path) -> None:
    other = save_checkpoint(tmp_path / "other", CONFIG, random_weights(CONFIG, seed=1))
    with Checkpoint.open(outliers) as checkpoint:
        measure_cost(checkpoint, "q8", settings=SOFTWARE)
    with Checkpoint.open(other) as checkpoint:
        assert remembered_cost(checkpoint, "q8") is None


class Letters:
    """A tokenizer that encodes only the characters of `known`."""

    eos = None

    def __init__(self, known: str) -> None:
        self.known = known

    def encode(self, text: str) -> list[int]:
        if unknown := set(text) - set(self.known):
            raise GlgptError(f"no token for {unknown}")
        return [self.known.index(c) for c in text]

    prompt = encode


@pytest.mark.slow
@pytest.mark.parametrize(("known", "own"), [("aeiou", False), ("#", True), ("", True)])
def test_the_text_has_the_models_own_characters(
    outliers: Path, monkeypatch: pytest.MonkeyPatch, known: str, own: bool
) -> None:
    """Fails if a vocabulary without a quotation mark, or without letters, cannot be measured."""
    asked: list[list[int]] = []
    plain: Callable[..., Any] = LanguageModel.logits

    def noted(model: LanguageModel, ids: list[int]) -> Any:
        asked.append(ids)
        return plain(model, ids)

    monkeypatch.setattr(LanguageModel, "logits", noted)
    monkeypatch.setattr(format_cost, "load_tokenizer", lambda *_: Letters(known))
    with Checkpoint.open(outliers) as checkpoint:
        cost = measure_cost(checkpoint, "q8", settings=SOFTWARE)
    assert asked[0] == asked[1] and cost.tokens == len(asked[0]) == 32
    vowels = ["aeiou".index(c) for c in format_cost.TEXT if c in "aeiou"]
    assert (asked[0] == vowels[:32]) != own
