"""GPT-2 in fragment shaders: inference and training on any GPU, or none, that has OpenGL 3.3."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glgpt.capture import RawTexture
    from glgpt.decoder import Run
    from glgpt.errors import GlgptError
    from glgpt.model import GPT2
    from glgpt.models.config import GPT2Config, activation_names
    from glgpt.trainer import StepResult, Trainer
    from glgpt.training import train

__all__ = [
    "GPT2",
    "GPT2Config",
    "GlgptError",
    "RawTexture",
    "Run",
    "StepResult",
    "Trainer",
    "activation_names",
    "train",
]
__version__ = "0.1.0"

_ROOMS = {
    "GPT2": "model",
    "GPT2Config": "models.config",
    "GlgptError": "errors",
    "RawTexture": "capture",
    "Run": "decoder",
    "StepResult": "trainer",
    "Trainer": "trainer",
    "activation_names": "models.config",
    "train": "training",
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for, so that the command starts, and stops, at once."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
