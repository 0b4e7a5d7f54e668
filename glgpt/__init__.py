"""GPT-2 in fragment shaders: inference on any GPU, or none, that has OpenGL 3.3."""

from glgpt.capture import RawTexture
from glgpt.errors import GlgptError
from glgpt.model import GPT2, Run
from glgpt.models.config import GPT2Config, activation_names

__all__ = ["GPT2", "GPT2Config", "GlgptError", "RawTexture", "Run", "activation_names"]
__version__ = "0.1.0"
