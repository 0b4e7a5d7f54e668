"""Tests whole runs with the real engine: resumed bit for bit, loaded as a model, stopped when they diverge."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import glgpt
from glgpt.cli import main
from glgpt.inference.model import LanguageModel
from glgpt.inspection.evaluate import evaluate
from glgpt.training.events import DivergedError, Step, TrainingCallbacks

PLAY = (Path(__file__).parents[1] / "data/shakespeare-validation.txt").read_text()
SMALL: dict[str, Any] = {
    "steps": 12, "n_layer": 2, "n_embd": 16, "n_head": 2, "context": 16, "batch": 4, "accumulate": 2, "lr": 1e-2,
    "dropout": 0.1, "eval_every": 4, "eval_tokens": 256, "sample_every": 6, "sample_tokens": 20, "save_every": 4,
    "device": "software",
}  # fmt: skip


@pytest.mark.slow
def test_a_run_is_resumed_to_the_same_bits_and_loads_as_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("play.txt").write_text(PLAY)

    def stop(step: Step) -> None:
        if step.step == 3:
            signal.raise_signal(signal.SIGINT)

    whole = glgpt.train("play.txt", out="whole", **SMALL)
    parts = glgpt.train("play.txt", out="parts", callbacks=TrainingCallbacks(on_step=stop), **SMALL)
    assert parts.interrupted and 3 <= parts.step < 12
    parts = glgpt.train(resume="parts")
    assert (whole.step, whole.loss, whole.validation_loss) == (parts.step, parts.loss, parts.validation_loss)
    assert whole.loss is not None and whole.loss < math.log(256) - 0.5
    for file in ("state.safetensors", "model.safetensors"):
        a, b = load_file(f"whole/{file}"), load_file(f"parts/{file}")
        assert a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
    assert Path("whole/samples/000012.txt").read_bytes() == Path("parts/samples/000012.txt").read_bytes()

    glgpt.train("play.txt", out="judged", **(SMALL | {"steps": 1, "warmup": 0, "eval_tokens": 0, "validation": 0.01}))
    with LanguageModel.from_pretrained("judged", device="software") as model:
        text = PLAY[int(len(PLAY) * 0.99) :]
        text = text[: (len(text) - 1) // 16 * 16 + 1]  # whole windows
        found = evaluate(model, text, 16)
    noted = json.loads(Path("judged/metrics.jsonl").read_text().splitlines()[-1])
    assert noted["validation_loss"] == pytest.approx(found.nats_per_token, abs=1e-4)
    assert main(["generate", "whole", "--tokens", "5", "--seed", "1", "--device", "software"]) == 0
    assert capsys.readouterr().err.endswith("seed 1\n")


@pytest.mark.slow
def test_a_run_that_diverges_names_a_tensor_and_keeps_its_checkpoint(tmp_path: Path) -> None:
    options = SMALL | {"lr": 1e30, "min_lr": 0.0, "warmup": 0, "clip": 0.0, "save_every": 0, "eval_every": 0}
    with pytest.raises(
        DivergedError, match=r"step \d+: .*first tensor affected is .*last good checkpoint is step 0 in"
    ):
        glgpt.train(text=PLAY, out=tmp_path / "run", **options)
    assert all(np.isfinite(array).all() for array in load_file(tmp_path / "run/state.safetensors").values())
