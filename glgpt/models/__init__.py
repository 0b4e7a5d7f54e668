"""Defines the models: one decoder with variants, and model families, each of which selects some of the variants.

`spec` describes a decoder, `network` records its shader passes with `ops`, and `families` has the description of each
model family, such as Llama. The package reads no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glgpt.errors import GlgptError, written
from glgpt.models.families import FAMILIES, config_class
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.models.spec import ModelConfig

DEFAULT = GPT2Config.model_type  # family of models that are trained from scratch


def default() -> ModelConfig:
    """Returns the configuration of the random model that benchmarks use if no model is given."""
    return GPT2Config()


def families() -> list[str]:
    """Returns the names of all families, sorted."""
    return sorted(FAMILIES)


def family(name: Any) -> type[ModelConfig]:
    """Returns a family's configuration class. Raises GlgptError for an unknown name."""
    if not isinstance(name, str) or name not in FAMILIES:
        known = ", ".join(map(repr, families()))
        raise GlgptError(f"config: model_type is {written(name)}; glgpt runs {known} checkpoints")
    return config_class(name)


def from_dict(config: Mapping[str, Any]) -> ModelConfig:
    """Reads a parsed `config.json` of any family. Raises GlgptError for an unknown architecture or a bad field."""
    return family(config.get("model_type")).from_dict(config)


def from_fields(fields: Mapping[str, Any]) -> ModelConfig:
    """Reverses `ModelConfig.fields`: returns the configuration that has these fields.

    Raises GlgptError if the family (`model_type`) is missing or unknown, and TypeError for unknown fields.
    """
    own = {name: value for name, value in fields.items() if name != "model_type"}
    return family(fields.get("model_type"))(**own)
