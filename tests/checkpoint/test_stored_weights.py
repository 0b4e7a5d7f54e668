"""Tests `--dtype stored`: the textures of a GGUF file's model hold the file's numbers, in narrow formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.gguf_files import KINDS, LLAMA, llama_tensors, tensor, tokenizer
from numpy.typing import NDArray
from safetensors.numpy import save_file
from test_block_types import raw_blocks

from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import stored_blocks, weight_formats
from glgpt.errors import GlgptError
from glgpt.gguf.quantize import WRITABLE
from glgpt.gguf.writer import write_gguf
from glgpt.inference.model import LanguageModel
from glgpt.models.weight_formats import StoredFormats
from glgpt.program.formats import ALL
