"""Converts a `config.json` to the metadata of a GGUF file: the reverse of `model_config`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import GlgptError, written
from glgpt.gguf.architectures import ARCHITECTURES, Architecture
from glgpt.gguf.model_config import FACTORS, FREQUENCIES, LLAMA3, llama3_divisors, rows_of
from glgpt.gguf.tensor import row_order

FILE_TYPES = {"F32": 0, "F16": 1, "Q4_1": 3, "Q8_0": 7}  # general.file_type, by the type that most tensors have


def architecture_for(config: Mapping[str, Any]) -> Architecture:
    """Returns the architecture of a model. Raises GlgptError if `ARCHITECTURES` has none for its `model_type`."""
    kind = config.get("model_type")
    kinds = {own: about for about in ARCHITECTURES.values() for own in (about.model_type, *about.also)}
    found = kinds.get(kind) if isinstance(kind, str) else None
    if found is None:
        known = ", ".join(kinds)
        raise GlgptError(f"model_type {written(kind)} cannot be written as GGUF; glgpt writes {known}")
    return found


def model_metadata(config: Mapping[str, Any], name: str, kind: str) -> dict[str, Any]:
    """Returns the metadata of a model, without the tokenizer's; `kind` is the type that most of its tensors have."""
    about = architecture_for(config)
    found: dict[str, Any] = {
        "general.architecture": about.name,
        "general.type": "model",
        "general.name": name,
        "general.file_type": FILE_TYPES[kind],
        "general.quantization_version": 2,
    }
    values = {key: config.get(field) for key, field in about.fields.items()}
    for key, value in (_implied(config) | {key: value for key, value in values.items() if value is not None}).items():
        whole = isinstance(value, int) or not key.endswith(("freq_base", "epsilon", "softcapping", "factor"))
        found[f"{about.name}.{key}"] = value if whole else float(value)
    return found


def _implied(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns metadata for llama.cpp that `Architecture.fields` does not list, such as the size of the vocabulary.

    Also returns defaults for fields that `config` may lack.
    """
    hidden: int = config["n_embd"] if "n_embd" in config else config["hidden_size"]
    heads: int = config["n_head"] if "n_head" in config else config["num_attention_heads"]
    width = config.get("head_dim") or hidden // heads
    found: dict[str, Any] = {"vocab_size": config["vocab_size"], "feed_forward_length": 4 * hidden}
    if "n_embd" in config:  # GPT-2 learns its position vectors, so it has no rotary settings
        return found
    rope = _rope(config)
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", config.get("rotary_pct", 1.0)))
    found |= {"rope.dimension_count": int(width * part), "attention.key_length": width, "attention.value_length": width}
    if rope.get("rope_type") == "longrope":
        found["rope.scaling.attn_factor"] = float(rope["attention_factor"])
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    elif rope.get("rope_type", "default") not in ("default", "llama3"):
        found["rope.scaling.type"] = rope["rope_type"]
        names = {"factor": "factor", "original_max_position_embeddings": "original_context_length"}
        found |= {f"rope.scaling.{key}": rope[field] for field, key in names.items() if field in rope}
    return found


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    rope: Mapping[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope


def rotary_tensors(config: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Returns, by name, the tensors that hold the model's rotary scaling in a GGUF file; {} if no tensor is needed.

    Raises GlgptError as `frequency_divisors` does.
    """
    rope, divisors = _rope(config), frequency_divisors(config)
    if rope.get("rope_type") == "longrope":
        return {f"{FACTORS}{name}.weight": np.float32(rope[f"{name}_factor"]) for name in ("long", "short")}
    return {} if divisors is None else {FREQUENCIES: divisors}


def frequency_divisors(config: Mapping[str, Any]) -> NDArray[np.float32] | None:
    """Returns the divisors of the rotary frequencies (`rope_freqs.weight`); None without Llama 3's rotary scaling.

    Raises GlgptError if a setting of the scaling differs from `LLAMA3`. GGUF files do not store these settings, so
    readers of the files assume `LLAMA3`.
    """
    rope = _rope(config)
    if rope.get("rope_type") != "llama3":
        return None
    for field, value in LLAMA3.items():
        if rope.get(field) != value:
            raise GlgptError(f"GGUF cannot hold rotary scaling with {field} {written(rope.get(field))}, only {value:g}")
    theta = rope.get("rope_theta", config.get("rope_theta"))
    return llama3_divisors(rope, float(theta), config["head_dim"] // 2).astype(np.float32)


def file_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns each tensor's name in a GGUF file, by its name in a checkpoint, both without `.weight` or `.bias`."""
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    assert isinstance(layers, int)
    return {theirs: own for own, theirs in architecture_for(config).names(layers).items()}


def file_values(config: Mapping[str, Any], name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Converts the values of a checkpoint's tensor to those that a GGUF file stores.

    Transposes the matrix and reorders its rows as the architecture requires, and adds `norm_shift` to the gain of a
    norm. `name` is the tensor's name in the GGUF file, with `.weight` or `.bias`.
    """
    about = architecture_for(config)
    stem, _, kind = name.rpartition(".")
    own = stem.rpartition(".")[2]
    if own in about.transposed and values.ndim == 2:
        values = values.T
    if axes := rows_of(about, own, values.shape[0], config):
        values = values[np.argsort(row_order(axes))]
    if about.norm_shift and own.endswith("_norm") and kind == "weight":
        values = values + np.float32(about.norm_shift)
    return values
