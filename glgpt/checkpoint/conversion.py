"""Writes a checkpoint in another file format: GGUF, or a folder in the format of Hugging Face transformers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.checkpoint.generation_config import end_of_text, recommended_sampling
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.safetensors_file import write_safetensors
from glgpt.errors import ArgumentError, FileError, GlgptError, quoted
from glgpt.gguf.block_types import F16, F32, NUMBERS, TYPES, TensorType
from glgpt.gguf.model_metadata import architecture_for, file_names, file_values, model_metadata, rotary_tensors
from glgpt.gguf.quantize import q4_1_bytes
from glgpt.gguf.tokenizer_files import SAMPLING
from glgpt.gguf.writer import Tensor, write_gguf
from glgpt.models.parameters import FileTensor
from glgpt.program.formats import FORMATS
from glgpt.system.files import named_errors, staged_folder, write_json
from glgpt.system.outputs import output_file, output_folder
from glgpt.text.gguf_vocabulary import vocabulary
from glgpt.text.tokenizer import load_tokenizer
from glgpt.text.tokenizer_training import copy_model_tokenizer

DTYPES = ("f32", "f16", "q8", "q4")
SUFFIX = ".gguf"
MAX_F16 = 65504.0
_KINDS = {"f32": F32, "f16": F16, "q8": TYPES[NUMBERS["Q8_0"]], "q4": TYPES[NUMBERS["Q4_1"]]}
# With q4, these tensors are stored in eight bits, as in llama.cpp's mixed types, because four bits would cost these
# tensors the most precision.
_PRECISE = ("token_embd", "output", "attn_v", "ffn_down")
_BIASES = ("attention_bias", "mlp_bias")  # settings on which the model's list of tensors depends

Progress = Callable[[int, int], None]


def convert(
    model: str | Path | None,
    out: str | Path,
    dtype: str | None = None,
    progress: Progress | None = None,
    adapter: str | Path | None = None,
) -> dict[str, Any]:
    """Writes a model to `out`: a GGUF file if `out` ends in .gguf, else a Hugging Face folder.

    `dtype` is f32, f16, q8 (Q8_0) or q4 (Q4_1); a folder holds f32 or f16. The default is f16 if all matrices of the
    model are f16, and f32 otherwise. `adapter` is the folder of a LoRA adapter, which is added to the weights. The
    file or folder appears at `out` only when it is complete. Returns its path, format and dtype, and the size in bytes
    of the GGUF file or of the folder's model.safetensors. Raises GlgptError for a model that cannot be opened, or that
    the file format cannot hold.
    """
    gguf = str(out).lower().endswith(SUFFIX)
    path = output_file(out, SUFFIX, option="--to") if gguf else output_folder(out, option="--to")
    with Checkpoint.open(model, adapter) as checkpoint:
        matrices = [p.name for p in checkpoint.config.parameters.values() if len(p.shape) > 1]
        dtype = dtype or ("f16" if all(checkpoint.dtype(name) == "F16" for name in matrices) else "f32")
        if dtype not in DTYPES:
            raise ArgumentError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        if not gguf and dtype not in ("f32", "f16"):
            raise ArgumentError(f"--dtype {dtype} needs a {SUFFIX} file as --to; a folder holds f32 or f16")
        write = _write_file if gguf else _write_folder
        size = write(checkpoint, path, dtype, progress)
        return {"path": str(path), "format": "gguf" if gguf else "folder", "dtype": dtype, "bytes": size}


def _ends(checkpoint: Checkpoint) -> tuple[int, ...]:
    size = checkpoint.config.vocab_size
    return end_of_text(checkpoint.path, size, load_tokenizer(checkpoint.path, size))


def _finite(checkpoint: Checkpoint, name: str, narrow: bool) -> NDArray[Any]:
    """Reads a tensor.

    If `narrow` (the target format uses float16), raises GlgptError for a value beyond the range of float16.
    """
    values: NDArray[Any] = checkpoint.read(name)
    if narrow and max(values.max(), -values.min()) > MAX_F16:
        raise GlgptError(f"{quoted(checkpoint.path, 300)}: tensor {name} has values beyond float16; use --dtype f32")
    return values


# GGUF


def _write_file(checkpoint: Checkpoint, path: Path, dtype: str, progress: Progress | None) -> int:
    config = checkpoint.config.to_dict()
    constants = architecture_for(config).constants
    _check_kept(checkpoint, {name: config[name] for name in _BIASES if name in config and name in constants}, constants)
    metadata = model_metadata(config, checkpoint.name, _KINDS[dtype].name)
    metadata |= vocabulary(checkpoint.path, checkpoint.config.vocab_size, _ends(checkpoint))
    recommended = recommended_sampling(checkpoint.path)
    for key, name in SAMPLING.items():
        if name in recommended:
            metadata[key] = int(recommended[name]) if name == "top_k" else float(recommended[name])
    tensors = [_tensor(checkpoint, config, each, dtype) for each in checkpoint.config.file_tensors.values()]
    rotary = rotary_tensors(config)
    tensors = [Tensor(name, F32, rotary[name].shape, partial(rotary.__getitem__, name)) for name in rotary] + tensors
    with named_errors(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        made = Path(folder) / path.name
        size = write_gguf(made, metadata, tensors, progress)
        _check_written(checkpoint, made)
        made.replace(path)
    return size


def _tensor(checkpoint: Checkpoint, config: dict[str, Any], wanted: FileTensor, dtype: str) -> Tensor:
    stem, _, kind = checkpoint.config.stored_name(wanted.name).rpartition(".")
    own = file_names(config)[stem]
    name = f"{own}.{kind}"
    shape = file_values(config, name, np.broadcast_to(np.float32(0), wanted.shape)).shape
    as_type = F32 if len(shape) == 1 or wanted.parameters[0].table else _kind(own.rpartition(".")[2], shape[-1], dtype)
    narrow = as_type is not F32

    def read() -> NDArray[Any]:
        return file_values(config, name, wanted.joined(partial(_finite, checkpoint, narrow=narrow)))

    return Tensor(name, as_type, shape, read, _searched if as_type is _KINDS["q4"] else None)


def _searched(_: TensorType, values: NDArray[Any]) -> NDArray[np.uint8]:
    """Encodes rows as Q4_1, with scales and minima that approximately minimise the squared error of each block."""
    coding = FORMATS["q4"].coding
    assert coding
    levels, scales, minima = coding.quantise(np.ascontiguousarray(values, np.float32).reshape(-1, coding.group))
    assert minima is not None
    return q4_1_bytes(levels, scales[:, None], minima[:, None]).reshape(len(values), -1)


def _kind(own: str, columns: int, dtype: str) -> TensorType:
    kind = _KINDS["q8" if dtype == "q4" and own in _PRECISE else dtype]
    return kind if columns % kind.block == 0 else F16


def _check_written(checkpoint: Checkpoint, made: Path) -> None:
    """Raises FileError if the written file lacks a setting of the model: GGUF has no field for some settings."""
    with Checkpoint.open(made) as again:
        found, wanted = again.config.to_dict(), checkpoint.config.to_dict()
        if wanted["model_type"] in architecture_for(wanted).also:
            wanted |= {name: found[name] for name in ("model_type", "architectures")}
        _check_kept(checkpoint, wanted, found)


def _check_kept(checkpoint: Checkpoint, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raises FileError if a setting of the model (`wanted`) is missing or different in GGUF (`found`)."""
    for name in (key for key in wanted if not _alike(found.get(key), wanted[key])):
        raise FileError(f"{quoted(checkpoint.path, 300)}: GGUF cannot hold its {name}, {wanted[name]}")


def _alike(a: Any, b: Any) -> bool:
    """True for equal values; floats are compared in float32, as GGUF stores them."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_alike(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    return bool(np.float32(a) == np.float32(b)) if isinstance(a, float) and isinstance(b, float) else bool(a == b)


# Folders


def _write_folder(checkpoint: Checkpoint, path: Path, dtype: str, progress: Progress | None) -> int:
    config, ends = checkpoint.config, _ends(checkpoint)
    form = np.dtype(np.float16 if dtype == "f16" else np.float32)
    tensors = {config.stored_name(name): tensor for name, tensor in config.file_tensors.items()}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    with staged_folder(path) as folder:
        eos = list(ends) if len(ends) > 1 else next(iter(ends), None)
        own = {"bos_token_id": None, "eos_token_id": eos, "dtype": form.name, "_name_or_path": checkpoint.name}
        write_json(folder / "config.json", config.to_dict() | own)
        write_json(folder / "generation_config.json", {"eos_token_id": eos} | recommended_sampling(checkpoint.path))
        if load_tokenizer(checkpoint.path, config.vocab_size):
            copy_model_tokenizer(checkpoint.path, config.vocab_size, folder)
        return write_safetensors(
            folder / "model.safetensors",
            form,
            shapes,
            lambda name: tensors[name].joined(partial(_finite, checkpoint, narrow=dtype == "f16")),
            progress,
        )
