"""The Llama family (Touvron et al. 2023), which includes SmolLM2 and TinyLlama.

`config` has its parameters and activations, `network` its forward pass. It depends on `ops` and on the shared modules
of `models`.
"""

from glgpt.models.llama.config import LlamaConfig

CONFIG = LlamaConfig
