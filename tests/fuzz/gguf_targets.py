"""Defines the reader of GGUF files as a fuzzing target, compared with the `gguf` package if that is installed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from harness import Difference, Parser
from helpers.gguf_files import KINDS, LLAMA, TOKENS, VOCAB, llama, tokenizer
from mutations import Files

from glgpt.checkpoint.generation_config import end_of_text
from glgpt.checkpoint.opening import Checkpoint
from glgpt.gguf.quantize import encode
from glgpt.gguf.reader import open_gguf
from glgpt.gguf.writer import Tensor, header
from glgpt.text.tokenizer import load_tokenizer

try:  # imported here, since the time limit of a case is too short for the import
    from gguf import GGUFReader, dequantize
except ImportError:
    GGUFReader = None
NAME = "a.gguf"


def _seeds() -> list[Files]:
    """Returns models with a byte-level or SentencePiece tokenizer, and a file of all tensor types without a model."""
    scores = np.linspace(0, -1, VOCAB).astype(np.float32)
    types = np.ones(VOCAB, np.int32)
    types[0], types[1:3] = 2, 3
    plain = tokenizer(add_bos_token=True) | {"tokenizer.chat_template": "{{ messages }}", "general.name": "Tiny"}
    pieces = {"model": "llama", "scores": scores, "token_type": types, "tokens": TOKENS, "unknown_token_id": 0}
    found = []
    for metadata, kind in ((LLAMA | plain, "Q8_0"), (LLAMA | tokenizer(**pieces), "Q4_1")):
        with tempfile.TemporaryDirectory() as name:
            found.append({NAME: llama(Path(name) / NAME, kind, metadata).read_bytes()})
    return [*found, {NAME: _all_types()}]


def _all_types() -> bytes:
    draw = np.random.default_rng(1)
    tensors = [Tensor(name, kind, (2, max(kind.block, 32)), np.empty) for name, kind in KINDS.items()]
    data = header({"general.name": "types"}, tensors)
    for tensor in tensors:
        data += bytes(-len(data) % 32)
        size = tensor.nbytes
        values = draw.standard_normal((2, 32)).astype(np.float32)
        data += encode(tensor.type, values).tobytes() if tensor.type.unpack is None else draw.bytes(size)
    return data


def _gguf(folder: Path) -> None:
    path = folder / NAME
    file = open_gguf(path)
    with np.errstate(all="ignore"):  # a scale may be infinite
        arrays = {name: tensor.map() for name, tensor in file.tensors.items()}
        for name, tensor in file.tensors.items():
            at = np.arange(0, arrays[name].size, max(1, arrays[name].size // 7))
            _same(name, tensor.sample(at), arrays[name].ravel()[at].astype(np.float32))
            if tensor.type.unpack:
                _same(name, tensor.blocks().values().ravel(), arrays[name].ravel())
        _compare(path, arrays)
    if "general.architecture" in file.metadata:
        with Checkpoint.open(path) as checkpoint:
            size = checkpoint.config.vocab_size
            for name in checkpoint.names:
                checkpoint.read(name)
        found = load_tokenizer(path, size)
        end_of_text(path, size, found)
        if found:
            found.encode("hello world<|end|>")


def _same(name: str, found: np.ndarray, wanted: np.ndarray) -> None:
    if not np.array_equal(found, wanted, equal_nan=True):
        raise Difference(f"tensor {name}: two ways to read it give different values")


def _compare(path: Path, arrays: dict[str, np.ndarray]) -> None:
    if GGUFReader is None:
        return
    try:
        tensors = GGUFReader(path).tensors
    except Exception:  # the package and this reader refuse different files
        return
    for tensor in tensors:
        wanted = dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in arrays:
            _same(tensor.name, arrays[tensor.name].astype(np.float32).ravel(), np.asarray(wanted, np.float32).ravel())


GGUF = Parser("gguf", _seeds, _gguf)
