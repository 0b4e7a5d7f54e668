"""All that is GPT-2 (Radford et al. 2019): `config` says what it is made of, `network` how it computes.

It knows parameters and ops; it never knows files, text or GL.
"""

from glgpt.models.gpt2.config import GPT2Config

CONFIG = GPT2Config
