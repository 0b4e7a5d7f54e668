"""Tests a run and its folder, with a fake trainer: contents and refusals."""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fake_trainer
from helpers.chat_models import CHATML, chat_llama
from helpers.fake_trainer import OFTEN, PLAY, SMALL, fake, metrics  # noqa: F401

import glgpt
from glgpt.checkpoint.finding import embedded_weights
from glgpt.checkpoint.generation_config import chat_sampling
from glgpt.errors import GlgptError
from glgpt.plots.loss import loss_curve
from glgpt.text.tokenizer import load_tokenizer
from glgpt.text.untrusted.chat import template_source
from glgpt.training.events import Start, Step, TrainingCallbacks
from glgpt.training.run_folder import staged


def refused(why: str, *files: str, **options: Any) -> None:
    before = sorted(Path().rglob("*"))
    with pytest.raises(GlgptError, match=why) as caught:
        glgpt.train(files or ["play.txt"], **(SMALL | {"out": "new"} | options))
    assert "\n" not in str(caught.value)
    assert sorted(Path().rglob("*")) == before  # no file was created


# A run's contents


def test_a_run_folder_holds_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glgpt.training.loop.loss_curve", loss_curve)
    done = glgpt.train("play.txt", out="run", **SMALL, **OFTEN)
    names = {p.name for p in Path("run").iterdir()}
    assert names == {
        "config.json", "state.safetensors", "vocab.json", "merges.txt", "tokenizer_config.json",
        "generation_config.json", "train.json", "metrics.jsonl", "loss.png", "samples", "steps",
    }  # fmt: skip
    assert [line["step"] for line in metrics("run")] == list(range(41))
    assert [line["step"] for line in metrics("run") if "validation_loss" in line] == [0, 10, 20, 30, 40]
    assert sorted(p.name for p in Path("run/samples").iterdir()) == ["000020.txt", "000040.txt"]
    assert len(Path("run/samples/000040.txt").read_bytes()) >= 30
    assert Path("run/loss.png").read_bytes().startswith(b"\x89PNG")
    last = metrics("run")[-1]
    assert (done.step, done.loss, done.validation_loss) == (40, last["loss"], last["validation_loss"])
    assert done.tokens == 40 * 4 * 16 and not done.interrupted and done.folder == Path("run")
    assert last["loss"] < metrics("run")[1]["loss"] - 0.5
    assert Path("run").stat().st_mode & 0o777 == Path().stat().st_mode & 0o777 | 0o755


def test_every_step_has_its_own_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if a step is taken, or logged, with another step's rate."""
    taken, submit = list[float](), fake_trainer.Trainer.submit

    def noting(self: fake_trainer.Trainer, inputs: np.ndarray, targets: np.ndarray, lr: float) -> Any:
        taken.append(lr)
        return submit(self, inputs, targets, lr)

    monkeypatch.setattr(fake_trainer.Trainer, "submit", noting)
    glgpt.train("play.txt", out="run", **SMALL, warmup=10, schedule="linear", lr=1.0, min_lr=0.0)
    wanted = [step / 10 for step in range(1, 11)] + [1 - step / 30 for step in range(1, 31)]
    assert taken == pytest.approx(wanted)
    assert [line["lr"] for line in metrics("run") if "lr" in line] == taken


def test_the_validation_loss_is_that_of_the_fixed_windows() -> None:
    seen: list[Step] = []
    glgpt.train(
        "play.txt", out="run", callbacks=TrainingCallbacks(on_step=seen.append), **SMALL, **(OFTEN | {"eval_tokens": 0})
    )
    trainer = fake_trainer.Trainer.load("run", batch=4)
    validation = np.frombuffer(PLAY[int(len(PLAY) * 0.9) :].encode(), np.uint8)
    whole = (len(validation) - 1) // 16 * 16
    assert whole > 11_000
    nats = trainer._loss(validation[1 : whole + 1])[0]
    assert seen[-1].validation_loss == pytest.approx(nats, rel=1e-9)
    assert seen[-1].bits_per_byte == pytest.approx(nats / math.log(2), rel=1e-9)  # one byte per token
    assert [s.step for s in seen] == list(range(1, 41))
    assert all(s.validation_loss is None for s in seen if s.step % 10)


def test_bits_a_byte_count_the_bytes_of_tokens() -> None:
    done = glgpt.train("play.txt", out="run", **SMALL, tokenizer="bpe:300", validation=0.2, eval_tokens=0)
    tokenizer = load_tokenizer(Path("run"), 300)
    assert tokenizer and done.validation_loss and done.bits_per_byte
    ids = tokenizer.encode(PLAY[int(len(PLAY) * 0.8) :])
    whole = (len(ids) - 1) // 16 * 16
    size = len(tokenizer.decode_bytes(ids[1 : whole + 1]))
    assert done.bits_per_byte == pytest.approx(done.validation_loss * whole / size / math.log(2), rel=1e-9)


def test_callbacks_are_called_at_every_event() -> None:
    told: list[tuple[str, Any]] = []
    glgpt.train(
        text=PLAY[::-1],
        out="run",
        callbacks=TrainingCallbacks(
            on_start=lambda start: told.append(("start", start)),
            on_step=lambda step: told.append(("step", step.step)),
            on_sample=lambda step, text: told.append(("sample", (step, text))),
            on_save=lambda step: told.append(("save", step)),
            on_progress=lambda what, done, total: told.append((what, done / total)),
        ),
        **SMALL,
        **OFTEN,
    )
    kinds = [kind for kind, _ in told]
    start = next(value for kind, value in told if kind == "start")
    assert isinstance(start, Start) and start.memory == {"weight": 2048, "state": 4096} and start.step == 0
    assert start.parameters == 256 * 8 + 16 * 8 + 12 * 64 + 13 * 8 + 16
    assert (start.train_tokens, start.validation_tokens) == (100386, 11154)
    assert kinds.index("tokenising") < kinds.index("start") < kinds.index("step")
    assert [v for k, v in told if k == "save"] == [10, 20, 30, 40]
    assert [v[0] for k, v in told if k == "sample"] == [20, 40]
    assert ("validating", 1.0) in told
    assert dict(told)["sample"][1] == Path("run/samples/000040.txt").read_text()


def test_a_run_without_validation_or_samples() -> None:
    done = glgpt.train("play.txt", out="run", **SMALL, eval_every=0, sample_every=0, save_every=0)
    assert done.validation_loss is None and not Path("run/samples").exists()
    assert [line["step"] for line in metrics("run")] == list(range(1, 41))
    done = glgpt.train("play.txt", out="all", **SMALL, validation=0.0)
    assert done.validation_loss is None
    assert json.loads(Path("all/train.json").read_text())["settings"]["validation"] == 0


def test_runs_without_a_name_get_one() -> None:
    names = [str(glgpt.train("play.txt", **SMALL).folder) for _ in range(2)]
    assert names == ["runs/play-nano", "runs/play-nano-2"]


def test_a_run_that_is_being_set_up_has_taken_its_name() -> None:
    """Regression: two runs that started together chose the same name, and one of them failed after its set-up."""
    with staged(Path("runs/play-nano")):
        assert str(glgpt.train("play.txt", **SMALL).folder) == "runs/play-nano-2"


def test_a_checkpoint_is_trained_further_with_its_own_tokenizer() -> None:
    shape = {"batch": 2, "steps": 3, "eval_tokens": 64}
    done = glgpt.train("play.txt", init="shakespeare", out="run", context=32, **shape)
    record = json.loads(Path("run/train.json").read_text())
    assert done.step == 3 and record["init"] == "shakespeare" and record["preset"] is None
    assert record["settings"]["n_embd"] == 256 and record["vocab_size"] == 1024
    assert Path("run/merges.txt").read_bytes() == (embedded_weights() / "merges.txt").read_bytes()
    assert json.loads(Path("run/generation_config.json").read_text())["eos_token_id"] == 0
    with pytest.raises(GlgptError, match="context 257 is beyond the model's 256 positions"):
        glgpt.train("play.txt", init="shakespeare", out="new", context=257)
    for name, value in {"tokenizer": "bytes", "n_layer": 2}.items():
        with pytest.raises(GlgptError, match=f"{name} is given by the checkpoint"):
            glgpt.train("play.txt", init="shakespeare", out="new", **{name: value})
    with pytest.raises(GlgptError, match="preset and init cannot be combined"):
        glgpt.train("play.txt", init="shakespeare", out="new", preset="nano")


def test_a_chat_model_that_is_trained_further_can_still_chat(tmp_path: Path) -> None:
    """Regression: the run lacked the initial checkpoint's chat template and recommended sampling settings."""
    extra = {"general.sampling.temp": 0.5, "general.sampling.top_k": 7}
    start = chat_llama(tmp_path / "chat.gguf", extra=extra)
    glgpt.train("play.txt", init=start, out="run", context=32, batch=2, steps=1, keep=1, eval_every=0, sample_every=0)
    for folder in (Path("run"), Path("run/steps/1")):
        assert template_source(folder) == CHATML
        assert chat_sampling(folder) == {"temperature": 0.5, "top_k": 7}


# Refusals


def test_an_existing_folder_is_not_overwritten() -> None:
    glgpt.train("play.txt", out="run", **SMALL)
    refused("run holds a run already; continue it with --resume run", out="run")
    Path("run").rename("my run")
    refused("my run holds a run already; continue it with --resume 'my run'", out="my run")
    Path("full").mkdir()
    Path("full/letter").write_text("dear")
    refused("full is not empty; give another folder", out="full")
    refused("play.txt is a file", out="play.txt")
    Path("bare").mkdir()
    assert glgpt.train("play.txt", out="bare", **SMALL).step == 40


def test_texts_that_cannot_be_trained_on() -> None:
    Path("empty").touch()
    Path("short").write_text("To be, or not to be" * 2)
    Path("latin").write_bytes(b"caf\xe9 " * 100)
    refused("empty is empty", "empty")
    refused("callbacks is <built-in function print>; it must be a glgpt.TrainingCallbacks", callbacks=print)
    refused("latin is not UTF-8 text: invalid continuation byte at byte 3; .* iconv -f LATIN1 -t UTF-8$", "latin")
    Path("wide").write_text("wide " * 100, encoding="utf-16")
    refused("wide is not UTF-8 text: invalid start byte at byte 0; .* iconv -f UTF-16 -t UTF-8$", "wide")
    refused("training text has 34 tokens, too few for a context of 64", "short", context=64)
    refused("validation text has 4 tokens, too few", "short")
    refused("too large for this text", "short", tokenizer="bpe:1000")
    odd = os.fsdecode(b"n\xff.txt")
    Path(odd).write_text(PLAY)
    Path(os.fsdecode(b"model-\xff")).mkdir()
    refused(r"n\\udcff.txt is not UTF-8, and train.json records the names of files: rename the file", odd)
    refused(r"model-\\udcff is not UTF-8", init=os.fsdecode(b"model-\xff"))
    with pytest.raises(GlgptError, match="no text was given"):
        glgpt.train(out="new", **SMALL)
    with pytest.raises(GlgptError, match="both files and a text"):
        glgpt.train("play.txt", text=PLAY, out="new", **SMALL)


@pytest.mark.parametrize(
    "options, why",
    [
        ({"steps": 0}, "steps is 0"), ({"steps": 2.5}, "steps is 2.5"), ({"lr": 0}, "lr is 0"),
        ({"lr": 1e39}, "lr is 1e+39; it must"),
        ({"lr": math.nan}, "lr is nan"), ({"min_lr": 1}, "min_lr 1 is above lr 0.003"), ({"warmup": 40}, "warmup"),
        ({"schedule": "step"}, "is not one of cosine, linear, constant"), ({"beta2": 1}, "beta2 is 1"),
        ({"dropout": 1.0}, "dropout"), ({"clip": -1}, "clip"), ({"validation": 1}, "validation"),
        ({"seed": 2**32}, "seed"), ({"speed": 1}, "'speed' is not a setting"), ({"preset": "huge"}, "preset 'huge'"),
        ({"n_head": 3}, "n_embd 8 is not a multiple of n_head 3"), ({"tokenizer": "words"}, "tokenizer 'words'"),
        ({"batch": True}, "batch is True"), ({"eval_every": -1}, "eval_every is -1"),
        ({"recompute": "no"}, "recompute is 'no'; it must be True or False"), ({"device": 0.5}, "device is 0.5"),
    ],
)  # fmt: skip
def test_bad_settings_are_refused(options: dict[str, Any], why: str) -> None:
    refused(re.escape(why), **options)
