"""Tests LoRA adapters: weights equal the formula in float64, and adapters that glgpt cannot add are refused."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.command_line import refused
from helpers.exports import few_recordings
from helpers.gguf_files import llama
from helpers.small_page import small_page
from safetensors.numpy import load_file, save_file

from glgpt import load, models
from glgpt.checkpoint.conversion import convert
from glgpt.checkpoint.opening import Checkpoint
from glgpt.cli import main
from glgpt.errors import ArgumentError, GlgptError
from glgpt.inference.model import LanguageModel
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions
from glgpt.training.trainer import Trainer

GOLDENS = Path(__file__).parents[1] / "goldens"
QUERIES = "model.layers.0.self_attn.q_proj"
IDS = [1, 5, 2, 9, 30, 4]


def adapter(folder: Path, shapes: Mapping[str, tuple[int, int]], rank: int = 3, **fields: Any) -> Path:
    """Writes an adapter of random matrices. `shapes` has each module's numbers of inputs and outputs."""
    draw, tensors = np.random.default_rng(7), {}
    for module, (into, out) in shapes.items():
        for kind, shape in (("A", (rank, into)), ("B", (out, rank))):
            tensors[f"base_model.model.{module}.lora_{kind}.weight"] = draw.standard_normal(shape, np.float32)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": 2, "target_modules": [*shapes], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(about | fields))
    return folder


def product(folder: Path, module: str) -> np.ndarray:
    """Returns the product B A of a module's adapter in float64."""
    tensors = load_file(folder / "adapter_model.safetensors")
    a, b = (tensors[f"base_model.model.{module}.lora_{kind}.weight"].astype(np.float64) for kind in "AB")
    return b @ a


@pytest.mark.parametrize(
    ("fields", "scale"),
    [
        ({}, 2 / 3),
        ({"use_rslora": True}, 2 / 3**0.5),
        ({"alpha_pattern": {"q_proj": 6}}, 2.0),
        ({"alpha_pattern": {"k_proj": 6, r"layers\.\d+\.self_attn\.[q]_proj": 12}}, 4.0),
        ({"r": 16, "rank_pattern": {"layers.0.self_attn.q_proj": 3}}, 2 / 3),
        ({"fan_in_fan_out": True, "init_lora_weights": "gaussian", "use_dora": False, "modules_to_save": None}, 2 / 3),
    ],
)
def test_weights_are_those_of_the_formula(tmp_path: Path, fields: dict[str, Any], scale: float) -> None:
    """Fails if the scale is wrong, a pattern matches another layer, or the product is transposed."""
    model = llama(tmp_path / "model.gguf")
    folder = adapter(tmp_path / "lora", {QUERIES: (64, 64)}, **fields)
    with Checkpoint.open(model) as plain, Checkpoint.open(model, folder) as adapted:
        name = "layers.0.self_attn.q_proj.weight"
        wanted = plain.read(name).astype(np.float64) + scale * product(folder, QUERIES)
        np.testing.assert_allclose(adapted.read(name), wanted, atol=2e-5)
        np.testing.assert_array_equal(adapted.sample(name, 9), adapted.read(name).ravel()[:: 64 * 64 // 9][:9])
        assert [each for each in plain.config.parameters if adapted.adapts(each)] == [name]
        other = "layers.1.self_attn.q_proj.weight"
        np.testing.assert_array_equal(adapted.read(other), plain.read(other))


def test_weights_stored_by_input_are_changed_by_the_transpose(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "lora", {"transformer.h.1.attn.c_attn": (48, 144)}, fan_in_fan_out=True)
    with Checkpoint.open(GOLDENS / "wide") as plain, Checkpoint.open(GOLDENS / "wide", folder) as adapted:
        name = "h.1.attn.c_attn.weight"
        wanted = plain.read(name) + 2 / 3 * product(folder, "transformer.h.1.attn.c_attn").T
        np.testing.assert_allclose(adapted.read(name), wanted, atol=2e-5)


def test_rows_of_a_shared_tensor_are_changed(tmp_path: Path) -> None:
    sizes = {"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64}
    config = models.from_dict({"model_type": "phi3", "num_attention_heads": 4, "num_key_value_heads": 2} | sizes)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(config.to_dict()))
    tensors = {config.stored_name(k): np.zeros(t.shape, np.float32) for k, t in config.file_tensors.items()}
    save_file(tensors, tmp_path / "model/model.safetensors")
    module = "model.layers.0.self_attn.qkv_proj"
    folder = adapter(tmp_path / "lora", {module: (32, 64)})
    with Checkpoint.open(tmp_path / "model", folder) as adapted:
        wanted = 2 / 3 * product(folder, module)
        for part, rows in {"q": slice(0, 32), "k": slice(32, 48), "v": slice(48, 64)}.items():
            found = adapted.read(f"layers.0.self_attn.{part}_proj.weight")
            np.testing.assert_allclose(found, wanted[rows], atol=2e-5)


@pytest.mark.slow
def test_a_model_with_an_adapter_is_the_merged_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if an exported page, a saved cache or a converted file belongs to the model without its adapter."""
    shapes = {"transformer.h.0.mlp.c_fc": (48, 192), "transformer.h.1.attn.c_proj": (48, 48)}
    folder = adapter(tmp_path / "lora", shapes)
    convert(GOLDENS / "wide", tmp_path / "merged", adapter=folder)
    with LanguageModel.from_pretrained(tmp_path / "merged", device="software") as merged:
        wanted = merged.logits(IDS)
    with load(GOLDENS / "wide", adapter=folder, device="software") as model:
        np.testing.assert_array_equal(model.logits(IDS), wanted)
        list(model.generate_ids(IDS, 3, temperature=0, eos=False))
        model.save_cache(tmp_path / "cache")
    with load(GOLDENS / "wide", device="software") as model:
        assert np.abs(model.logits(IDS) - wanted).max() > 1e-2
        with pytest.raises(GlgptError, match="another model"):
            model.load_cache(tmp_path / "cache")
    page = small_page(tmp_path / "page")
    monkeypatch.setattr("glgpt.page.export.built_page", lambda: page)
    with few_recordings("4x4"):
        both = [
            export(tmp_path / "merged", tmp_path / "a", ExportOptions("f16"), device="software"),
            export(GOLDENS / "wide", tmp_path / "b", ExportOptions("f16", adapter=folder), device="software"),
        ]
    assert both[0]["shards"] == both[1]["shards"]


def test_a_trainer_starts_from_a_model_with_its_adapter(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "lora", {"transformer.h.0.mlp.c_fc": (48, 192)})
    options = {"device": "software", "kernel": "4x4"}
    with (
        load(GOLDENS / "wide", adapter=folder, **options) as model,
        Trainer(model, batch=1, context=4, **options) as trainer,
    ):
        for name, values in trainer.parameters().items():
            np.testing.assert_array_equal(values, model.parameter(name))


def test_other_weights_of_a_gguf_file_stay_as_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = llama(tmp_path / "model.gguf", "Q4_1")
    folder = adapter(tmp_path / "lora", {QUERIES: (64, 64)})
    with caplog.at_level(logging.WARNING, "glgpt.inference"):
        adapted = LanguageModel.from_pretrained(model, device="software", adapter=folder)
    assert caplog.messages == ["tensors that the adapter changes are rounded: 1 in q8; --dtype f32 does not round them"]
    with adapted, LanguageModel.from_pretrained(model, device="software") as plain:
        name, other = "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.o_proj.weight"
        wanted = plain.parameter(name) + 2 / 3 * product(folder, QUERIES)
        np.testing.assert_allclose(adapted.parameter(name), wanted, atol=np.abs(wanted).max() / 200)
        np.testing.assert_array_equal(adapted.parameter(other), plain.parameter(other))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; glgpt supports 'LORA' adapters"),
        ({"use_dora": True}, "use_dora is True"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"bias": "all"}, "bias is 'all'; glgpt supports 'none'"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"r": 0}, "r has 0; a rank is an integer from 1"),
        ({"lora_alpha": "two"}, "lora_alpha has 'two'"),
        ({"use_rslora": 1}, "use_rslora is 1; it must be true or false"),
        ({"rank_pattern": {"(a+)+": 3}}, r"rank_pattern has the pattern '\(a\+\)\+'"),
        ({"alpha_pattern": {"[": 3}}, r"alpha_pattern has the pattern '\['"),
        (
            {"r": 4},
            r"q_proj: lora_A has shape \[3, 64\], but layers\.0\.self_attn\.q_proj\.weight has shape \[64, 64\]",
        ),
    ],
)
def test_what_is_not_added_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    model = llama(tmp_path / "model.gguf")
    folder = adapter(tmp_path / "lora", {QUERIES: (64, 64)}, **fields)
    with pytest.raises(GlgptError, match=said):
        Checkpoint.open(model, folder)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({QUERIES: (64, 32)}, r"q_proj: lora_B has shape \[32, 3\], but .*q_proj\.weight has shape \[64, 64\]"),
        ({"model.layers.7.self_attn.q_proj": (64, 64)}, r"layers\.7\.self_attn\.q_proj is not a linear layer"),
        ({"model.norm": (64, 64)}, r"model\.norm is not a linear layer or an embedding"),
        ({"lm_head": (64, 269)}, "lm_head cannot be adapted alone: the model's embedding is also its head"),
        ({}, "holds no matrices of LoRA"),
    ],
)
def test_an_adapter_of_another_model_is_refused(tmp_path: Path, shapes: dict[str, tuple[int, int]], said: str) -> None:
    model = llama(tmp_path / "model.gguf")
    folder = adapter(tmp_path / "lora", shapes)
    with pytest.raises(GlgptError, match=said):
        Checkpoint.open(model, folder)


def test_a_change_that_is_not_finite_names_the_adapter(tmp_path: Path) -> None:
    """Regression: the error named the file of the base model, whose weights are finite."""
    folder = adapter(tmp_path / "lora", {QUERIES: (64, 64)}, lora_alpha=1e8)
    file = folder / "adapter_model.safetensors"
    save_file({name: values * np.float32(1e34) for name, values in load_file(file).items()}, file)
    said = r"lora: the changed tensor layers\.0\.self_attn\.q_proj\.weight is .* at \[0, 0\]; weights must be finite"
    with Checkpoint.open(llama(tmp_path / "model.gguf"), folder) as checkpoint, pytest.raises(GlgptError, match=said):
        checkpoint.read("layers.0.self_attn.q_proj.weight")


def test_a_damaged_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, arguments = llama(tmp_path / "model.gguf"), ("generate", "--ids", "1,2", "--tokens", "1", "--model")
    folder = adapter(tmp_path / "lora", {QUERIES: (64, 64)})
    file = folder / "adapter_model.safetensors"
    good = file.read_bytes()
    save_file({"base_model.model.x.bias": np.zeros(3, np.float32)}, file)
    assert "x.bias is not a matrix of LoRA" in refused(capsys, *arguments, str(model), "--adapter", str(folder))
    file.write_bytes(good[:-4])
    assert "not a valid safetensors file" in refused(capsys, *arguments, str(model), "--adapter", str(folder))
    file.unlink()
    assert "holds no weights of an adapter" in refused(capsys, *arguments, str(model), "--adapter", str(folder))
    assert "is not a folder" in refused(capsys, *arguments, str(model), "--adapter", str(model))
    with pytest.raises(ArgumentError, match="adapter cannot be combined with rest or plan"):
        load(model, adapter=folder, plan="0-1@here")
    with pytest.raises(ArgumentError, match="adapter is 3; it must be the folder"):
        load(model, adapter=3)


def test_the_command_runs_the_adapted_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = adapter(tmp_path / "lora", {"transformer.h.1.mlp.c_fc": (48, 192)}, lora_alpha=60)
    found = []
    for more in ([], ["--adapter", str(folder)]):
        arguments = ["--model", str(GOLDENS / "wide"), "--ids", "1,2,3", "--tokens", "8", "--temperature", "0"]
        assert main(["generate", *arguments, "--device", "software", *more]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] != found[1]
