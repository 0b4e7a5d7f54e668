"""Defines the model families: configuration, parameters, activations and forward pass of each.

`spec` is the interface of a family, `network` what their forward passes share; each subpackage is one family, named
after the `model_type` of its `config.json`. Forward passes are recorded with `ops`; no file is read here.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from glgpt.errors import GlgptError, written

if TYPE_CHECKING:
    from glgpt.models.spec import ModelConfig

DEFAULT = "gpt2"  # family of models trained from fresh weights


def families() -> list[str]:
    """Returns the names of all families."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if found.ispkg)


def family(name: Any) -> type[ModelConfig]:
    """Returns a family's configuration class. Raises GlgptError for an unknown name."""
    known = families()
    if name not in known:
        raise GlgptError(
            f"config: model_type is {written(name)}; glgpt runs {' and '.join(map(repr, known))} checkpoints"
        )
    config: type[ModelConfig] = import_module(f"{__name__}.{name}").CONFIG
    return config


def from_dict(config: Mapping[str, Any]) -> ModelConfig:
    """Reads a parsed `config.json` of any family. Raises GlgptError for another architecture or a bad field."""
    return family(config.get("model_type")).from_dict(config)


def from_fields(fields: Mapping[str, Any]) -> ModelConfig:
    """Returns the configuration with these `ModelConfig.fields`.

    Raises GlgptError for a missing or unknown family, and TypeError for other fields.
    """
    own = {name: value for name, value in fields.items() if name != "model_type"}
    return family(fields.get("model_type"))(**own)
