"""Describes the metadata and tensors of a shape's model files, so that a page recognises and loads such files.

A shape is an architecture with its sizes, such as that of SmolLM2-135M, without weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt import models
from glgpt.errors import GlgptError
from glgpt.gguf.architectures import Architecture
from glgpt.gguf.block_types import F32
from glgpt.gguf.model_config import FREQUENCIES, NEUTRAL, model_config, rows_of
from glgpt.gguf.model_metadata import architecture_for, file_names, frequency_divisors, model_metadata
from glgpt.gguf.reader import GgufFile
from glgpt.gguf.tensor import GgufTensor
from glgpt.models.parameters import Parameter
from glgpt.models.spec import ALIASES, ModelConfig
from glgpt.page.documents.player import ConfigFields, Expected, GgufKeys, ShapeParameter

Json = dict[str, Any]
# Fields of a config.json for rotary positions. Old and new files have different ones of these fields; a page converts
# the fields to one form before it compares them.
_ROPE = ("rope_theta", "rope_scaling", "rope_parameters", "rotary_emb_base", "rotary_pct")


def gguf_about(config: ModelConfig) -> GgufKeys | None:
    """Returns the fields by which a page recognises a GGUF file of a shape; None if GGUF lacks the architecture."""
    fields = config.to_dict()
    try:
        about = architecture_for(fields)
        metadata = model_metadata(fields, "", "F32")
        divisors = frequency_divisors(fields)
    except GlgptError:
        return None
    known = about.fields.keys() - {"context_length"}
    prefix, whole = f"{about.name}.", _read_metadata(config, metadata, divisors)
    values: list[Expected] = []
    for key in sorted(known | {"rope.dimension_count"}):
        if prefix + key in metadata:
            less = {k: v for k, v in metadata.items() if k != prefix + key}
            values.append([key, metadata[prefix + key], _read_metadata(config, less, divisors) == whole])
    given = {key for key, _, _ in values}
    neutral: dict[str, Any] = dict.fromkeys(known - given)
    neutral |= {key: value for key, value in NEUTRAL.items() if key not in about.fields}
    neutral["attention.value_length"] = config.d_head
    return {
        "architecture": about.name,
        "values": values,
        "neutral": [list(item) for item in sorted(neutral.items())],
        "divisors": None if divisors is None else divisors.tolist(),
    }


class _Divisors:
    """Replaces the tensor `rope_freqs.weight` of a GGUF file; `model_config` calls only the tensor's method `map`."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        self.values = values

    def map(self) -> NDArray[np.float32]:
        return self.values


def _read_metadata(
    config: ModelConfig, metadata: Mapping[str, Any], divisors: NDArray[np.float32] | None
) -> Json | None:
    """Returns the fields of a `ModelConfig` that glgpt would read from a GGUF file with this metadata.

    The file has the tensors of `config`. Returns None if glgpt refuses such a file.
    """
    tensors: dict[str, Any] = {"token_embd.weight": GgufTensor(Path(), F32, (config.vocab_size, config.n_embd), 0)}
    if not config.tie_word_embeddings:
        tensors["output.weight"] = tensors["token_embd.weight"]
    if divisors is not None:
        tensors[FREQUENCIES] = _Divisors(divisors)
    try:
        return _read(model_config(GgufFile(Path(), dict(metadata), tensors)))
    except (GlgptError, TypeError):
        return None


def config_about(config: ModelConfig) -> ConfigFields:
    """Returns the fields by which a page recognises a config.json of this shape."""
    fields = config.to_dict()
    whole, values = _read(fields), list[Expected]()
    for key, value in fields.items():
        if key in ("architectures", "max_position_embeddings", *config.dropouts, *_ROPE):
            continue
        less = {k: v for k, v in fields.items() if k != key}
        same = [value, *(alias for alias, name in ALIASES.items() if name == value)]
        values.append([key, same, _read(less) == whole])
    return {"values": values, "rope": fields.get("rope_parameters")}


def _read(fields: Mapping[str, Any]) -> Json | None:
    """Returns the fields of the `ModelConfig` that a config.json describes, and sizes that are computed from them.

    Returns None if glgpt refuses the config.json.
    """
    try:
        config = models.from_dict(fields)
    except (GlgptError, TypeError):
        return None
    return config.fields() | {"head_dim": config.d_head, "kv_heads": config.n_kv_head, "n_inner": config.d_inner}


def parameters(config: ModelConfig, whole: ModelConfig) -> list[ShapeParameter]:
    """Describes every parameter: its texture's matrix, and the tensors that hold it in a GGUF file and in a checkpoint.

    In the result, `rows` are the rows of the tensor that hold the parameter (None: all rows). `config` has as many
    positions as the page's caches, and `whole` as many as the model.
    """
    fields = whole.to_dict()
    names: dict[str, str] = {}
    about: Architecture | None = None
    try:
        about = architecture_for(fields)
        names = file_names(fields)
    except GlgptError:
        pass  # GGUF has no such models
    return [_parameter(p, whole, fields, names, about) for p in config.parameters.values()]


def _parameter(
    p: Parameter, whole: ModelConfig, fields: Json, names: dict[str, str], about: Architecture | None
) -> ShapeParameter:
    tensor, rows = whole.file_place(p.name)
    shape = list(tensor.shape)
    found: ShapeParameter = {
        "name": p.name,
        "checkpoint": {"name": whole.stored_name(tensor.name), "shape": shape, "transposed": p.transposed},
        "rows": [rows.start, rows.stop] if tensor.divided else None,
        "matrix": list(p.unpadded),
        "heads": [p.heads.axis, p.heads.count, p.heads.width, p.heads.padded, p.heads.alternating] if p.heads else None,
        "product": p.product,
        "gguf": None,
    }
    stem, _, kind = whole.stored_name(tensor.name).rpartition(".")
    if about and stem in names:
        own = names[stem].rpartition(".")[2]
        stored = shape[::-1] if own in about.transposed and len(shape) == 2 else shape
        found["gguf"] = {
            "name": f"{names[stem]}.{kind}",
            "shape": stored,
            "transposed": p.product,
            "exchanged": rows_of(about, own, stored[0], fields),
            "shift": -about.norm_shift if own.endswith("_norm") and kind == "weight" else 0.0,
        }
    return found
