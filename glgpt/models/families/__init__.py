"""Defines the model families. Each module describes one family: usual values, tensor names, fields of `config.json`.

`FAMILIES` is the table of all families. The module of a family is imported when the family is first used.
"""

from __future__ import annotations

from importlib import import_module

from glgpt.models.spec import ModelConfig

# The `model_type` of a `config.json` -> module and class of the family.
FAMILIES = {
    "gpt2": "gpt2.GPT2Config",
    "llama": "llama.LlamaConfig",
    "mistral": "mistral.MistralConfig",
    "qwen2": "qwen2.Qwen2Config",
    "qwen3": "qwen3.Qwen3Config",
    "smollm3": "smollm3.SmolLM3Config",
    "gemma2": "gemma2.Gemma2Config",
    "gemma3_text": "gemma3.Gemma3Config",
    "gpt_neox": "gpt_neox.GPTNeoXConfig",
    "olmo2": "olmo2.Olmo2Config",
    "gpt_neo": "gpt_neo.GPTNeoConfig",
    "phi3": "phi3.Phi3Config",
}


def config_class(model_type: str) -> type[ModelConfig]:
    """Returns the configuration class of a family; `model_type` is a key of `FAMILIES`."""
    module, name = FAMILIES[model_type].split(".")
    found: type[ModelConfig] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
