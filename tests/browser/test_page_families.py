"""Tests that families other than GPT-2 and Llama have the desktop's numbers and text in the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from glgpt import models
from glgpt.page import programs
from glgpt.page.export import export
from glgpt.page.export_options import ExportOptions

COMMON = {"vocab_size": 61, "max_position_embeddings": 40, "hidden_size": 24, "num_hidden_layers": 2}
GROUPED = {**COMMON, "intermediate_size": 40, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
LOCAL = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
NEO = {"hidden_size": 24, "num_layers": 2, "num_heads": 4, "window_size": 4}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {**GROUPED, "head_dim": 6},
    "qwen3": GROUPED,
    "smollm3": {**GROUPED, "head_dim": 6, "no_rope_layers": [1, 0]},
    "gemma2": {**GROUPED, **LOCAL, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": {**GROUPED, **LOCAL, "query_pre_attn_scalar": 20},
    "gpt_neox": {**COMMON, "intermediate_size": 40, "num_attention_heads": 3, "rotary_pct": 0.5},
    "olmo2": {**GROUPED, "head_dim": 6},
    "gpt_neo": {**COMMON, **NEO, "attention_types": [[["global", "local"], 1]]},
    "mistral": {**GROUPED, "sliding_window": 4},
    "phi3": {**GROUPED, "head_dim": 6, "sliding_window": 4},
}


def checkpoint(folder: Path, name: str, fields: dict[str, Any]) -> Path:
    """Writes a model of random weights and returns its folder."""
    config = models.from_dict({"model_type": name} | fields)
    draw = np.random.default_rng(0)
    weights = {}
    for tensor in config.file_tensors.values():
        values = draw.standard_normal(tensor.shape, np.float32) * np.float32(0.3)
        around_one = len(tensor.shape) == 1 and tensor.name.endswith("weight") and not config.gain_offset
        weights[tensor.name] = values + np.float32(around_one)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": name} | fields))
    save_file(weights, folder / "model.safetensors")
    return folder


# These families are soak tests, since other families cover their variants: biases, a norm of queries and keys, a
# window, and several weights in one tensor.
REPEATS = ("qwen2", "qwen3", "mistral", "phi3")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, ("f32", "f16")[i % 2], marks=[pytest.mark.soak] * (name in REPEATS))
        for i, name in enumerate(FAMILIES)
    ],
)
def test_a_family_has_the_desktops_numbers_and_text(
    tmp_path: Path,
    serve: Callable[..., str],
    browse: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    dtype: str,
) -> None:
    """Fails if the page ignores a sliding window, a norm of heads, a soft cap or partial rotary positions."""
    first = programs.page_recordings(dtype)[:1]
    monkeypatch.setattr(programs, "page_recordings", lambda _: first)  # the other recordings have the same passes
    folder = checkpoint(tmp_path / "model", name, FAMILIES[name])
    export(folder, tmp_path / "page", ExportOptions(dtype), device="software")
    page = browse(serve(tmp_path / "page") + "#tokens=1")
    page.evaluate("glgpt.ready")
    result = page.evaluate("glgpt.parity()")
    assert result["pass"] and result["greedyEqual"] and result["firstApart"] is None, result
