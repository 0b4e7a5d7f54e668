"""Runs and trains GPT-2, Llama and related models as fragment shaders, on any GPU with OpenGL 3.3 or on the CPU."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glgpt.errors import ArgumentError, DeviceError, FileError, GlgptError
    from glgpt.inference.arguments.sampling_options import SamplingOptions
    from glgpt.inference.capture import RawTexture
    from glgpt.inference.constraints.constraint import Constraint
    from glgpt.inference.conversation import Conversation
    from glgpt.inference.generation import Generation, GenerationStats, TokenStream
    from glgpt.inference.interventions import Ablate, Attend, Patch, Scale, Steer
    from glgpt.inference.loading import load
    from glgpt.inference.model import GPT2, LanguageModel
    from glgpt.models.families.gpt2 import GPT2Config
    from glgpt.models.spec import ModelConfig
    from glgpt.text.tokenizer import StreamDecoder
    from glgpt.training.events import StepResult, TrainingCallbacks
    from glgpt.training.run import train
    from glgpt.training.trainer import Trainer, TrainerSettings
    from glgpt.tuning.kernel_selection import DeviceSettings

__all__ = [
    "GPT2",
    "Ablate",
    "ArgumentError",
    "Attend",
    "Constraint",
    "Conversation",
    "DeviceError",
    "DeviceSettings",
    "FileError",
    "GPT2Config",
    "Generation",
    "GenerationStats",
    "GlgptError",
    "LanguageModel",
    "ModelConfig",
    "Patch",
    "RawTexture",
    "SamplingOptions",
    "Scale",
    "Steer",
    "StepResult",
    "StreamDecoder",
    "TokenStream",
    "Trainer",
    "TrainerSettings",
    "TrainingCallbacks",
    "load",
    "train",
]
__version__ = "0.1.0"

_PACKAGES = {
    "Steer": "inference.interventions",
    "Scale": "inference.interventions",
    "Patch": "inference.interventions",
    "Attend": "inference.interventions",
    "Ablate": "inference.interventions",
    "ArgumentError": "errors",
    "Constraint": "inference.constraints.constraint",
    "Conversation": "inference.conversation",
    "DeviceError": "errors",
    "DeviceSettings": "tuning.kernel_selection",
    "FileError": "errors",
    "GPT2": "inference.model",
    "LanguageModel": "inference.model",
    "GPT2Config": "models.families.gpt2",
    "Generation": "inference.generation",
    "GlgptError": "errors",
    "ModelConfig": "models.spec",
    "RawTexture": "inference.capture",
    "SamplingOptions": "inference.arguments.sampling_options",
    "GenerationStats": "inference.generation",
    "StepResult": "training.events",
    "StreamDecoder": "text.tokenizer",
    "TokenStream": "inference.generation",
    "Trainer": "training.trainer",
    "TrainerSettings": "training.trainer",
    "TrainingCallbacks": "training.events",
    "load": "inference.loading",
    "train": "training.run",
}


def __dir__() -> list[str]:
    """Returns the public names, imported or not, and the names that begin with `_`; omits this file's own imports."""
    return sorted({*(name for name in globals() if name.startswith("_")), *__all__})


def __getattr__(name: str) -> Any:
    """Imports a public name at its first use, so that the command `glgpt` starts fast and obeys signals at once."""
    if name == "data":  # the package, whose functions are used as `glgpt.data.bundled`
        return import_module("glgpt.data")
    if name not in _PACKAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PACKAGES[name]}"), name)
