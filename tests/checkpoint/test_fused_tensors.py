"""Tests GGUF files and folders of models like Phi-3, whose stored tensors hold several parameters each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from glgpt import models
from glgpt.checkpoint import opening
from glgpt.checkpoint.conversion import convert
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.safetensors_file import sha256
from glgpt.checkpoint.stored_weights import stored_blocks
from glgpt.errors import GlgptError
from glgpt.gguf.model_config import model_config
from glgpt.gguf.reader import open_gguf
from glgpt.training.trainer import Trainer

FIELDS: dict[str, Any] = {
    "model_type": "phi3", "vocab_size": 61, "max_position_embeddings": 48, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "sliding_window": 6,
}  # fmt: skip
QKV, GATE_UP = "model.layers.1.self_attn.qkv_proj.weight", "model.layers.1.mlp.gate_up_proj.weight"


def phi3(folder: Path) -> dict[str, np.ndarray]:
    """Writes a model of random weights. Returns the tensors of its file."""
    config, draw = models.from_dict(FIELDS), np.random.default_rng(0)
    tensors = {
        config.stored_name(name): draw.standard_normal(tensor.shape, np.float32) * np.float32(0.2)
        for name, tensor in config.file_tensors.items()
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(FIELDS))
    save_file(tensors, folder / "model.safetensors")
    return tensors


def test_rows_of_one_tensor_are_several_parameters(tmp_path: Path) -> None:
    tensors = phi3(tmp_path)
    q, k, v = np.split(tensors[QKV], [64, 96])
    gate, up = np.split(tensors[GATE_UP], 2)
    with Checkpoint.open(tmp_path) as checkpoint:
        block = "layers.1.self_attn."
        for name, values in {f"{block}q_proj": q, f"{block}k_proj": k, f"{block}v_proj": v}.items():
            np.testing.assert_array_equal(checkpoint.read(f"{name}.weight"), values)
        np.testing.assert_array_equal(checkpoint.read("layers.1.mlp.gate_proj.weight"), gate)
        np.testing.assert_array_equal(checkpoint.read("layers.1.mlp.up_proj.weight"), up)
        np.testing.assert_array_equal(
            checkpoint.sample("layers.1.mlp.up_proj.weight", 5), up.ravel()[:: up.size // 5][:5]
        )


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        (QKV, (120, 64), r"layers\.1\.self_attn\.qkv_proj\.weight has shape \[120, 64\].* requires \[128, 64\]"),
        (GATE_UP, None, r"tensor layers\.1\.mlp\.gate_up_proj\.weight is missing"),
    ],
)
def test_a_wrong_tensor_is_named_as_in_the_file(tmp_path: Path, name: str, shape: Any, said: str) -> None:
    tensors = phi3(tmp_path)
    own = tensors.pop(name)
    save_file(tensors | ({name: own[: shape[0]].copy()} if shape else {}), tmp_path / "model.safetensors")
    with pytest.raises(GlgptError, match=said):
        Checkpoint.open(tmp_path)


@pytest.mark.parametrize("dtype", ["f32", "q8"])
def test_gguf_and_folders_hold_the_tensors_as_published(tmp_path: Path, dtype: str) -> None:
    tensors = phi3(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "a.gguf", dtype)
    found = open_gguf(tmp_path / "a.gguf").tensors
    assert found["blk.1.attn_qkv.weight"].shape == (128, 64) and found["blk.1.ffn_up.weight"].shape == (192, 64)
    with Checkpoint.open(tmp_path / "a.gguf") as checkpoint:
        name = "layers.1.self_attn.v_proj.weight"
        np.testing.assert_allclose(checkpoint.read(name), tensors[QKV][96:], atol=0 if dtype == "f32" else 5e-3)
        blocks = stored_blocks(checkpoint, name, "q8")
        if dtype == "q8":
            assert blocks is not None
            np.testing.assert_array_equal(blocks[:, :], checkpoint.read(name).T)
    if dtype == "f32":
        convert(tmp_path / "a.gguf", tmp_path / "again")
        again = load_file(tmp_path / "again/model.safetensors")
        assert again.keys() == tensors.keys()
        for name, values in tensors.items():
            np.testing.assert_array_equal(again[name], values)


def test_a_saved_run_has_them_and_a_damaged_part_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = phi3(tmp_path / "model")
    with Trainer(tmp_path / "model", batch=1, context=4, device="software") as trainer:
        trainer.save(tmp_path / "run")
    file = tmp_path / "run/model.safetensors"
    saved = load_file(file)
    assert saved.keys() == tensors.keys()
    np.testing.assert_array_equal(saved[QKV], tensors[QKV])
    summed: list[int] = []

    def counted(array: np.ndarray) -> str:
        summed.append(array.size)
        return sha256(array)

    monkeypatch.setattr(opening, "sha256", counted)
    with Checkpoint.open(tmp_path / "run") as checkpoint:
        for part in "qkv":
            checkpoint.read(f"layers.1.self_attn.{part}_proj.weight")
    assert summed == [tensors[QKV].size]  # the checksum is computed once for the three parameters
    data = file.read_bytes()
    at = data.index(tensors[QKV].tobytes())
    file.write_bytes(data[: at + 2] + b"\0\0" + data[at + 4 :])
    said = r"layers\.1\.self_attn\.q_proj\.weight does not match its checksum"
    with Checkpoint.open(tmp_path / "run") as checkpoint, pytest.raises(GlgptError, match=said):
        checkpoint.read("layers.1.self_attn.q_proj.weight")


def test_longrope_is_kept_with_the_factors_of_the_positions_that_run(tmp_path: Path) -> None:
    phi3(tmp_path / "model")
    short, long = [1 + i / 8 for i in range(8)], [9.0] * 8
    scaling = {"type": "su", "short_factor": short, "long_factor": long}
    fields = FIELDS | {"rope_scaling": scaling, "original_max_position_embeddings": 12, "sliding_window": None}
    (tmp_path / "model/config.json").write_text(json.dumps(fields))
    convert(tmp_path / "model", tmp_path / "a.gguf")
    for path in (tmp_path / "model", tmp_path / "a.gguf"):
        with Checkpoint.open(path) as checkpoint:
            config = checkpoint.config
        assert config.n_positions == 12 and config.rope_type == "longrope"
        assert config.rope_scaling == pytest.approx([(1 + np.log(4) / np.log(12)) ** 0.5, *short])
    file = open_gguf(tmp_path / "a.gguf")
    assert {name: t.map().tolist() for name, t in file.tensors.items() if name.startswith("rope_factors_")} == {
        "rope_factors_long.weight": short, "rope_factors_short.weight": short
    }  # fmt: skip
    file.tensors.pop("rope_factors_short.weight")
    with pytest.raises(GlgptError, match=r"tensor rope_factors_short\.weight is missing"):
        model_config(file)


@pytest.mark.parametrize("window", [0, 6])
def test_a_window_of_zero_is_none(tmp_path: Path, window: int) -> None:
    phi3(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "a.gguf")
    file = open_gguf(tmp_path / "a.gguf")
    file.metadata["phi3.attention.sliding_window"] = window
    assert models.from_dict(model_config(file)).window == (window or None)
