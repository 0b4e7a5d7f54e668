"""Compares LoRA adapters applied by glgpt with the same adapters merged into the model by PEFT."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from helpers.reference import within

from glgpt.checkpoint.conversion import convert
from glgpt.checkpoint.finding import find_model
from glgpt.inference.model import LanguageModel
from glgpt.program.tolerance import kl_divergence

peft = pytest.importorskip("peft", reason="make test-reference installs peft")

ATOL, RTOL = 2e-4, 1e-5
DEVICE = os.environ.get("GLGPT_TEST_DEVICE", "software")
IDS = np.random.default_rng(1).integers(0, 61, 31).tolist()
COMMON = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "initializer_range": 0.2}
SIZES = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {**COMMON, **SIZES, "num_key_value_heads": 2, "max_position_embeddings": 48}
GPT2 = {**COMMON, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 48}
PATTERNS = {"rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.up_proj": 3}, "alpha_pattern": {"k_proj": 5}}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", LLAMA, {"target_modules": ["q_proj", "v_proj", "down_proj"], "lora_alpha": 8}),
    ("llama", LLAMA, {"target_modules": "all-linear", "use_rslora": True, **PATTERNS}),
    ("phi3", LLAMA, {"target_modules": ["qkv_proj", "gate_up_proj"]}),
    ("gpt2", GPT2, {"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}),
    (
        "gpt_neox",
        {**COMMON, **SIZES, "hidden_size": 32},
        {"target_modules": ["query_key_value", "embed_in", "lm_head"]},
    ),
]


def adapted(folder: Path, model: Path, scale: float, **options: Any) -> Any:
    """Saves an adapter of random matrices for a model. Returns the model that PEFT merges, in float64."""

    def base() -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype="float32")

    torch.manual_seed(1)
    drawn = peft.get_peft_model(base(), peft.LoraConfig(r=4, **options))
    with torch.no_grad():
        for name, parameter in drawn.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * scale)
    drawn.save_pretrained(folder)
    return peft.PeftModel.from_pretrained(base(), folder).merge_and_unload().double().eval()


@torch.no_grad()
def logits(network: Any, ids: list[int]) -> np.ndarray:
    found: np.ndarray = network(torch.tensor([ids])).logits[0].numpy()
    return found


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`")
@pytest.mark.parametrize(("name", "fields", "options"), CASES)
def test_logits_are_those_of_the_merged_model(
    tmp_path: Path, name: str, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    """Fails if the scale or a tensor's name differs, a pattern matches other modules, or matrices are transposed."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **fields)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    theirs = adapted(tmp_path / "lora", tmp_path / "model", 0.3, **options)
    with LanguageModel.from_pretrained(tmp_path / "model", device=DEVICE, adapter=tmp_path / "lora") as model:
        within(model.logits(IDS), logits(theirs, IDS), ATOL, RTOL, "logits")
    with LanguageModel.from_pretrained(tmp_path / "model", device=DEVICE) as plain:
        assert np.abs(plain.logits(IDS) - logits(theirs, IDS)).max() > 0.1


@pytest.mark.soak
def test_smollm2_with_an_adapter_is_the_merged_model(tmp_path: Path) -> None:
    """Repeats with SmolLM2 the checks that tests/checkpoint/test_adapters.py makes with small GGUF files."""
    smollm2 = find_model("smollm2")
    convert(smollm2, tmp_path / "model", "f32")
    targets = ["q_proj", "v_proj", "o_proj", "down_proj"]
    theirs = adapted(tmp_path / "lora", tmp_path / "model", 0.05, target_modules=targets, lora_alpha=8)
    with LanguageModel.from_pretrained(smollm2, "f32", device=DEVICE, adapter=tmp_path / "lora") as model:
        ids = model.encode("The capital of France is Paris, and that of Spain is Madrid.")
        wanted = logits(theirs, ids)
        within(model.logits(ids), wanted, ATOL, RTOL, "logits")
    del theirs
    with LanguageModel.from_pretrained(smollm2, device=DEVICE, adapter=tmp_path / "lora") as model:
        assert kl_divergence(wanted, model.logits(ids)).mean() < 4e-3  # without an adapter, q8 has 1.3e-3
