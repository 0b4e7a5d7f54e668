"""Tests that damaged or unknown files of a run are refused in one line that names the file and the field."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import tiny_trainer
from helpers.fake_trainer import OFTEN, PLAY, SMALL, fake  # noqa: F401
from safetensors.numpy import load_file, save, save_file

import glgpt
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.safetensors_file import CHECKSUMS
from glgpt.errors import GlgptError
from glgpt.training import state
from glgpt.training.run_folder import RunFolder


def said(what: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(GlgptError) as caught:
        what(*args, **options)
    message = str(caught.value)
    assert message.isprintable() and len(message) < 500
    return message


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the path of a run that the first test trains, and that each test copies."""
    return tmp_path_factory.mktemp("template") / "run"


@pytest.fixture
def run(fake: None, template: Path) -> Path:  # noqa: F811
    if not template.exists():
        glgpt.train("play.txt", out=template, **SMALL, **OFTEN)
    shutil.copytree(template, "run")
    return Path("run")


# metrics.jsonl


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"loss": 1.0}', "step: Field required"),
        ('{"step": 3, "loss": "low"}', "loss: Input should be a valid number"),
        ('{"step": 3, "loss": [1]}', "loss: Input should be a valid number"),
        ('{"step": 3, "loss": NaN}', "loss: Input should be a finite number"),
        ('{"step": 3, "grad_norm": 1e400}', "grad_norm: Input should be a finite number"),
        ('{"step": 3, "validation_loss": 1.0}', "validation_loss and validation_bits_per_byte must both"),
        ('{"step": true}', "step: Input should be a valid integer"),
        ('{"step": -1}', "step: Input should be greater than or equal to 0"),
        ('{"step": 1' + "0" * 5000 + "}", "number out of range"),
        ("[" * 100_000, "recursion limit exceeded"),
        ("3", "Input should be an object"),
        ("nonsense", "Invalid JSON"),
        ("\x1b[2J", "Invalid JSON"),
    ],
)
def test_metrics(line: str, why: str, run: Path) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], line, *lines[5:]]) + "\n")
    before = path.read_bytes()
    message = said(glgpt.train, resume="run", steps=50)
    assert message.startswith("run/metrics.jsonl is damaged: line 6: ") and why in message
    assert path.read_bytes() == before
    path.write_text("\n".join(lines) + "\n" + line[:-1])  # the last line is incomplete, as after a kill
    assert glgpt.train(resume="run", steps=50).step == 50


def test_metrics_that_are_no_file(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    assert "is a named pipe" in said(glgpt.train, resume="run", steps=50)


def test_a_full_disk_is_said_of_the_file(run: Path) -> None:
    class Full:
        closed = False

        def write(self, _: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            self.closed = True

    with RunFolder(run) as opened:
        opened._metrics.close()
        opened._metrics = Full()  # type: ignore[assignment]
        with pytest.raises(OSError, match="No space") as caught:
            opened.note({"step": 1})
        assert caught.value.filename == "run/metrics.jsonl"


# train.json


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"files": "play.txt"}, "files: Input should be a valid array"),
        ({"files": [1]}, "files.0: Input should be a valid string"),
        ({"vocab_size": "256"}, "vocab_size: Input should be a valid integer"),
        ({"vocab_size": 10**30}, "vocab_size: "),
        ({"vocab_size": 0}, "vocab_size: "),
        ({"data": None}, "data: "),
        ({"settings": []}, "settings: "),
        ({"settings": {"steps": 3}}, "settings.tokenizer: Field required"),
        ({"settings.lr": "fast"}, "settings.lr: Input should be a valid number"),
        ({"settings.lr": 10**400}, "settings"),
        ({"settings.batch": 1.5}, "settings.batch: "),
        ({"settings.batch": 10**30}, "settings"),
        ({"settings.schedule": "step"}, "schedule 'step' is not one of"),
        ({"settings.\x1b[2J": 1}, r"settings.\x1b[2J: Unexpected keyword argument"),
        ({"settings.steps": None}, "settings.steps: "),
    ],
)
def test_records(change: dict[str, Any], why: str, run: Path) -> None:
    path = run / "train.json"
    record = json.loads(path.read_text())
    for name, value in change.items():
        (record["settings"] if "." in name else record)[name.removeprefix("settings.")] = value
    path.write_text(json.dumps(record))
    message = said(glgpt.train, resume="run", steps=50)
    assert message.startswith("run/train.json is damaged: ") and why in message


def test_a_record_of_any_depth(run: Path) -> None:
    for content in ('{"files":' * 50_000, "[" * 1_000_000, '{"settings": ' + "[" * 190 + "]" * 190 + "}"):
        (run / "train.json").write_text(content)
        assert said(glgpt.train, resume="run", steps=50).startswith("run/train.json is damaged: ")


@pytest.mark.parametrize("size", ["n_embd", "context", "n_layer", "batch"])
def test_sizes_beyond_reason_are_refused_at_once(size: str, fake: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr("glgpt.training.run.make_tokenizer", lambda *_: pytest.fail("the tokenizer came first"))
    options = SMALL | {size: 22222222222222222}
    assert "must be at most 16777216" in said(glgpt.train, "play.txt", out="new", **options)
    assert not Path("new").exists()
    many = said(glgpt.train, "play.txt", out="new", **(SMALL | {"n_embd": 1 << 20, "context": 16}))
    assert "that makes" in many or "parameters; at most" in many
    assert not Path("new").exists()


def test_a_damaged_tokenizer_is_named(run: Path) -> None:
    vocab = json.loads((run / "vocab.json").read_text())
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (run / "vocab.json").write_text(json.dumps(vocab))
    message = said(glgpt.train, resume="run", steps=50)
    assert message == "run: its tokenizer files are not the ones it was trained with; restore them"
    record = json.loads((run / "train.json").read_text())
    del record["tokenizer"]
    (run / "train.json").write_text(json.dumps(record))
    assert "train.json is damaged: tokenizer: Field required" in said(glgpt.train, resume="run", steps=50)


# model.safetensors


def test_a_flipped_bit_of_a_runs_model_is_found(saved: Path) -> None:
    path = saved / "model.safetensors"
    whole = path.read_bytes()
    with Checkpoint.open(saved) as checkpoint:
        assert [checkpoint.read(name).shape for name in checkpoint.names]
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with Checkpoint.open(saved) as checkpoint:
        message = said(lambda: [checkpoint.read(name) for name in checkpoint.names])
    assert message.startswith(f"{path} is damaged: tensor ") and "does not match its checksum" in message


@pytest.mark.parametrize("sums", ["[]", "{", "[" * 100_000, '{"transformer.wte.weight": 3}'])
def test_checksums_that_are_none_are_refused(sums: str, saved: Path) -> None:
    path = saved / "model.safetensors"
    save_file(load_file(path), path, {CHECKSUMS: sums})
    with pytest.raises(GlgptError), Checkpoint.open(saved) as checkpoint:
        checkpoint.read("wte.weight")


# state.safetensors


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with tiny_trainer.trainer(tiny_trainer.TINY, context=4) as t:
        t.step(*tiny_trainer.examples(config=tiny_trainer.TINY, context=4))
        t.save(tmp_path / "saved")
    return tmp_path / "saved"


def load(folder: Path) -> None:
    tiny_trainer.Trainer.load(folder, device=tiny_trainer.DEVICE).close()


def about(folder: Path) -> dict[str, Any]:
    data = (folder / state.STATE).read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return dict(json.loads(header["__metadata__"]["glgpt"]))


def rewrite(folder: Path, tensors: dict[str, Any], said: dict[str, Any]) -> None:
    (folder / state.STATE).write_bytes(save(tensors, {"glgpt": json.dumps(said)}))


def test_any_flipped_bit_of_a_tensor_is_found(saved: Path) -> None:
    path = saved / state.STATE
    whole = path.read_bytes()
    start = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:start])
    load(saved)
    for name in ("wte.weight", "ln_f.bias.squares", "h.0.mlp.c_fc.weight.moment"):
        at = start + header[name]["data_offsets"][0]
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert said(load, saved) == f"{path} is damaged: the checksum of tensor {name} does not match"


def test_a_flipped_bit_of_the_metadata_is_found(saved: Path) -> None:
    path = saved / state.STATE
    whole = path.read_bytes()
    assert whole.count(b'\\"lr\\": 0.001') == 1
    path.write_bytes(whole.replace(b'\\"lr\\": 0.001', b'\\"lr\\": 0.003'))
    assert "the checksum of its metadata does not match" in said(load, saved)


def test_transposed_shapes_are_found_also_without_checksums(saved: Path) -> None:
    tensors, known = dict(load_file(saved / state.STATE)), about(saved)
    known.pop("tensors")
    name = "h.0.mlp.c_fc.weight"
    tensors[name] = np.ascontiguousarray(tensors[name].reshape(tensors[name].shape[::-1]))
    rewrite(saved, tensors, known)
    assert f"{state.STATE} is damaged: tensor {name} is 'F32' [8, 4], not 'F32' [4, 8]" in said(load, saved)


def test_a_state_of_a_browser_loads(saved: Path) -> None:
    tensors, known = dict(load_file(saved / state.STATE)), about(saved)
    for name in ("tensors", "made"):  # missing in a browser's state
        known.pop(name)
    rewrite(saved, tensors, known)
    with tiny_trainer.Trainer.load(saved, device=tiny_trainer.DEVICE) as t:
        assert t.steps_done == 1 and np.array_equal(t.parameters()["wte.weight"], tensors["wte.weight"])
    tensors["ln_f.bias"] = np.full_like(tensors["ln_f.bias"], np.nan)
    rewrite(saved, tensors, known)
    assert "tensor ln_f.bias holds a NaN" in said(load, saved)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"made": None}, None),
        ({"made": 3}, "made: "),
        ({"made": {"on": 3, "kernel": "4x4", "fetch": "texelFetch"}}, "made.on: "),
        ({"made": {"on": "x", "kernel": "zz", "fetch": "texelFetch"}}, "made.kernel: unknown kernel"),
        ({"step": ...}, "step: Field required"),
        ({"step": 1.5}, "step: "),
        ({"step": "1"}, "step: "),
        ({"lr": float("nan")}, "lr: "),
        ({"seed": -1}, "seed: "),
        ({"recipe": {}}, "recipe.batch: Field required"),
        ({"recipe": {"batch": 1, "context": 4, "spin": 1}}, "recipe.spin: Extra inputs are not permitted"),
        ({"recipe": {"batch": 10**30, "context": 4}}, "recipe.batch: "),
        ({"shape": [0, 4]}, "shape.0: "),
        ({"shape": [4]}, "shape.1: Field required"),
        ({"config": {"model_type": "gpt2", "n_inner": 10**30}}, "config: config: n_inner is "),
        ({"config": {"model_type": "gpt2", "n_embd": 22222222222222222}}, "config: config: n_embd is "),
        ({"config": {"model_type": "gpt2", "width": 3}}, "unexpected keyword argument 'width'"),
        ({"config": {"n_embd": 4}}, "config: config: model_type is None"),
        ({"config": 3}, "config: "),
        ({"tensors": {"wte.weight": {"sha256": "0", "shape": []}}}, "tensors.wte.weight.sha256: "),
        ({"tensors": {}}, None),
    ],
)
def test_metadata(change: dict[str, Any], why: str | None, saved: Path) -> None:
    known = {name: value for name, value in (about(saved) | change).items() if value is not ...}
    rewrite(saved, load_file(saved / state.STATE), known)
    if why is None and "made" in change:
        load(saved)
        return
    message = said(load, saved)
    assert message.startswith(f"{saved / state.STATE} is damaged: ") and (why or "the checksum of tensor") in message


def test_a_state_without_metadata_or_tensors(saved: Path) -> None:
    tensors, known = dict(load_file(saved / state.STATE)), about(saved)
    tensors.pop("wpe.weight.moment")
    rewrite(saved, tensors, known)
    assert "tensor wpe.weight.moment is missing" in said(load, saved)
    save_file(tensors, saved / state.STATE)
    assert "its metadata has no training state" in said(load, saved)


def test_the_config_names_the_end_of_text(tmp_path: Path) -> None:
    """Fails if config.json lacks the ids: transformers then uses GPT-2's, which are beyond the vocabulary."""
    config = tiny_trainer.TINY
    arrays = {name: np.zeros(p.shape, np.float32) for name, p in config.parameters.items()}
    for eos in (0, None):
        state.write(tmp_path, config, arrays, {}, {"recipe": {"dropout": 0.0}}, eos)
        fields = json.loads((tmp_path / "config.json").read_text())
        assert [fields[name] for name in ("bos_token_id", "eos_token_id")] == [eos, eos]


# Text


def test_a_byte_order_mark_is_no_text(fake: None) -> None:  # noqa: F811
    Path("marked.txt").write_text("\ufeff" + PLAY, encoding="utf-8")
    glgpt.train("play.txt", out="plain", **SMALL)
    glgpt.train("marked.txt", out="marked", **SMALL)
    glgpt.train(text="\ufeff" + PLAY, out="said", **SMALL)
    keys = {json.loads(Path(run, "train.json").read_text())["data"] for run in ("plain", "marked", "said")}
    assert len(keys) == 1
    Path("only.txt").write_bytes(b"\xef\xbb\xbf")
    assert "only.txt is empty" in said(glgpt.train, "only.txt", out="none", **SMALL)


def test_text_comes_from_regular_files(fake: None) -> None:  # noqa: F811
    os.mkfifo("pipe")
    assert "pipe is a named pipe" in said(glgpt.train, "pipe", out="none", **SMALL)
    Path("zero").symlink_to("/dev/zero")
    assert "zero is a device" in said(glgpt.train, "zero", out="none", **SMALL)
