"""Defines the model families: a module holds a family's usual values, tensor names and mapping from its `config.json`.

`FAMILIES` is the table of all of them, by the `model_type` of `config.json`.
"""

from glgpt.models.families.gemma2 import Gemma2Config
from glgpt.models.families.gemma3 import Gemma3Config
from glgpt.models.families.gpt2 import GPT2Config
from glgpt.models.families.gpt_neo import GPTNeoConfig
from glgpt.models.families.gpt_neox import GPTNeoXConfig
from glgpt.models.families.llama import LlamaConfig
from glgpt.models.families.mistral import MistralConfig
from glgpt.models.families.olmo2 import Olmo2Config
from glgpt.models.families.phi3 import Phi3Config
from glgpt.models.families.qwen2 import Qwen2Config
from glgpt.models.families.qwen3 import Qwen3Config
from glgpt.models.families.smollm3 import SmolLM3Config
from glgpt.models.spec import ModelConfig

ALL: tuple[type[ModelConfig], ...] = (
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
    Gemma2Config,
    Gemma3Config,
    GPTNeoXConfig,
    Olmo2Config,
    GPTNeoConfig,
    Phi3Config,
)
FAMILIES = {config.model_type: config for config in ALL}
