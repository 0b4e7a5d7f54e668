"""All that is Llama (Touvron et al. 2023), SmolLM2 and TinyLlama among it: `config` and `network`.

It knows parameters and ops; it never knows files, text or GL.
"""

from glgpt.models.llama.config import LlamaConfig

CONFIG = LlamaConfig
