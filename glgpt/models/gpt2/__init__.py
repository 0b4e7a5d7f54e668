"""The GPT-2 family (Radford et al. 2019): `config` has its parameters and activations, `network` its forward pass.

It depends on `ops` and on the shared modules of `models`.
"""

from glgpt.models.gpt2.config import GPT2Config

CONFIG = GPT2Config
