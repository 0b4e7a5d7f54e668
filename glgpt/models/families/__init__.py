"""Defines the model families: a module holds a family's usual values, tensor names and mapping from its `config.json`.

`FAMILIES` is the table of all of them. A family's module is imported when the family is first used.
"""

from __future__ import annotations

from importlib import import_module

from glgpt.models.spec import ModelConfig

# By the `model_type` of `config.json`: the module and its class.
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
    """Returns the class of one of `FAMILIES`."""
    module, name = FAMILIES[model_type].split(".")
    found: type[ModelConfig] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
