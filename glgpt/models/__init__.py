"""What each model family is: configuration, parameters, activations, forward pass. It never knows files or GL.

`spec` is what a family says of itself, `network` what their forward passes share; each other package is one family,
found by its name, which is the `model_type` of its `config.json`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from glgpt.errors import GlgptError, written

if TYPE_CHECKING:
    from glgpt.models.spec import ModelConfig

DEFAULT = "gpt2"  # what is trained from fresh weights


def families() -> list[str]:
    """Every family's name."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if found.ispkg)


def family(name: Any) -> type[ModelConfig]:
    """A family's configuration. Raises GlgptError where there is none of this name."""
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
    """What `ModelConfig.fields` gave. Raises GlgptError for an unknown family and TypeError for other fields."""
    fields = {"model_type": DEFAULT, **fields}  # states of the first version name none
    return family(fields.pop("model_type"))(**fields)
