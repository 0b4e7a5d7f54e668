"""Small GGUF files for tests: llamas of random weights, with a byte-level tokenizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.gguf.block_types import NUMBERS, TYPES, TensorType
from glgpt.gguf.quantize import encode
from glgpt.gguf.writer import Tensor, header, write_gguf
from glgpt.text.tokenizer import LETTER_BYTE

KINDS: dict[str, TensorType] = {name: TYPES[number] for name, number in NUMBERS.items()}
LETTERS = sorted(LETTER_BYTE, key=LETTER_BYTE.__getitem__)
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]
TOKENS = [*LETTERS, *(merge.replace(" ", "") for merge in MERGES), "<|start|>", "<|end|>", "<tool>"]
VOCAB = len(TOKENS)


def tokenizer(**more: Any) -> dict[str, Any]:
    """Returns the metadata of a byte-level tokenizer with two control tokens and a user-defined one."""
    types = np.full(VOCAB, 1, np.int32)
    types[-3:-1], types[-1] = 3, 4
    found = {
        "model": "gpt2", "pre": "gpt-2", "tokens": TOKENS, "token_type": types, "merges": MERGES,
        "bos_token_id": VOCAB - 3, "eos_token_id": VOCAB - 2,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in (found | more).items()}


LLAMA = {
    "general.architecture": "llama", "llama.context_length": 64, "llama.embedding_length": 64, "llama.block_count": 2,
    "llama.feed_forward_length": 96, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10000.0, "llama.rope.dimension_count": 16,
}  # fmt: skip


def llama_tensors(kind: str = "F32", seed: int = 0) -> list[Tensor]:
    """Returns the tensors of a llama of two blocks, whose matrices have the type `kind`."""
    draw = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCAB, 64), "output_norm": (64,)}
    for i in range(2):
        block = {
            "attn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64),
            "ffn_norm": (64,), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96),
        }  # fmt: skip
        shapes |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    return [tensor(f"{name}.weight", draw, shape, kind if len(shape) > 1 else "F32") for name, shape in shapes.items()]


def tensor(name: str, draw: np.random.Generator, shape: tuple[int, ...], kind: str = "F32") -> Tensor:
    values = draw.standard_normal(shape, np.float32) * np.float32(0.2)
    return Tensor(name, KINDS[kind], shape, lambda: values)


def llama(path: Path, kind: str = "F32", metadata: Mapping[str, Any] | None = None) -> Path:
    """Writes a llama of two blocks and returns the path."""
    write_gguf(path, LLAMA | tokenizer() if metadata is None else metadata, llama_tensors(kind))
    return path


# Byte offsets of the float16 numbers in a block: the scale, and in some types the minimum. Types that are not listed
# have only a scale, at 0.
FLOAT16_BYTES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q3_K": (108,),
    "Q2_K": (80, 82),
}
WIDE_SIZES = {"embedding_length": 256, "block_count": 1, "feed_forward_length": 512, "rope.dimension_count": 64}
WIDE_LLAMA = LLAMA | {f"llama.{name}": size for name, size in WIDE_SIZES.items()}
WIDE_SHAPES = {
    "token_embd": (VOCAB, 256), "blk.0.attn_q": (256, 256), "blk.0.attn_k": (128, 256), "blk.0.attn_v": (128, 256),
    "blk.0.attn_output": (256, 256), "blk.0.ffn_gate": (512, 256), "blk.0.ffn_up": (512, 256),
    "blk.0.ffn_down": (256, 512),
}  # fmt: skip
WIDE_NORMS = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")


def random_bytes(kind: TensorType, shape: tuple[int, int], draw: np.random.Generator) -> NDArray[np.uint8]:
    """Returns the bytes of a random tensor whose weights are about 0.05 in size.

    The integers of quantised types (levels) take all values, and scales have both signs.
    """
    if kind.unpack is None:
        return encode(kind, draw.standard_normal(shape, np.float32) * np.float32(0.05))
    found = draw.integers(0, 256, (math.prod(shape) // kind.block, kind.nbytes), np.uint8)
    bits = 8 if kind.name.startswith("IQ") else int(kind.name[1])
    size = 0.1 / 2**bits / (60 if kind.block > 32 else 1)
    for at in FLOAT16_BYTES.get(kind.name, (0,)):
        scales = draw.uniform(-size, size, len(found)).astype("<f2")
        found[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return found


def wide_llama(path: Path, kinds: Mapping[str, str], usual: str, metadata: Mapping[str, Any] = WIDE_LLAMA) -> Path:
    """Writes a llama of one block, whose matrices are of the type `usual` unless `kinds` names another one."""
    draw = np.random.default_rng(3)
    data = {name: random_bytes(KINDS[kinds.get(name, usual)], shape, draw) for name, shape in WIDE_SHAPES.items()}
    ones = np.ones(256, np.float32)
    data |= {name: encode(KINDS["F32"], ones[None]) for name in WIDE_NORMS}
    types = {name: KINDS[kinds.get(name, usual) if name in WIDE_SHAPES else "F32"] for name in data}
    listed = [Tensor(f"{name}.weight", types[name], WIDE_SHAPES.get(name, (256,)), lambda: ones) for name in data]
    with path.open("wb") as file:
        for part in (header(dict(metadata) | tokenizer(), listed), *(x.tobytes() for x in data.values())):
            file.write(part + bytes(-len(part) % 32))
    return path
