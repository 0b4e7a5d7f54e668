"""Writes a tiny random GPT-2 or Llama with twelve blocks, to find views that sort block numbers as text (1, 10, 2).

The Llama is an instruct model: it has special tokens and a chat template.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from glgpt.models.families.gpt2 import GPT2Config
from glgpt.models.families.llama import LlamaConfig
from glgpt.models.spec import ModelConfig
from glgpt.text.files import Text
from glgpt.text.tokenizer_training import make_tokenizer

BLOCKS = 12
SPREAD = 0.2  # standard deviation of the weights: large enough that each block visibly changes the residual stream
SPECIAL = {"<|start|>": 256, "<|end|>": 257}
CONFIGS: dict[str, ModelConfig] = {
    "gpt2": GPT2Config.sized(256, 96, 32, BLOCKS, 2),
    "llama": replace(LlamaConfig.sized(258, 96, 32, BLOCKS, 4), kv_heads=2),
}
CHAT = (
    "{% for m in messages %}<|start|>{{ m.role + '\\n' + m.content }}<|end|>{% endfor %}<|start|>{{ 'assistant\\n' }}"
)


def write_deep_model(family: str, folder: Path) -> None:
    """Writes a checkpoint of this family, with a byte-level tokenizer, into an existing folder."""
    config, rng = CONFIGS[family], np.random.default_rng(1)
    weights = {
        p.name: (p.mean + SPREAD * rng.standard_normal(p.shape)).astype(np.float32) for p in config.parameters.values()
    }
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    make_tokenizer("bytes", Text.of_string("a"), folder)
    if family == "llama":
        (folder / "added_tokens.json").write_text(json.dumps(SPECIAL))
        (folder / "chat_template.jinja").write_text(CHAT)
