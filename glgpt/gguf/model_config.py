"""Converts the metadata of a GGUF file to Hugging Face's `config.json`, and the tensors' names to a checkpoint's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glgpt.errors import FileError, quoted, written
from glgpt.gguf.architectures import ARCHITECTURES, Architecture
from glgpt.gguf.reader import GgufFile
from glgpt.gguf.tensor import Axes, GgufTensor

MAX_LAYERS = 1000
# Settings of Llama 3's rotary scaling, the same in all published models. A GGUF file does not store these settings; it
# stores the divisors of the rotary frequencies, which follow from the settings.
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
FREQUENCIES = "rope_freqs.weight"
FACTORS = "rope_factors_"

WINDOW = "attention.sliding_window"  # a window at least as long as the context has no effect
# Keys that change what a model computes, and the values at which they have no effect. A file must lack such a key or
# have this value, unless its architecture converts the key to a field of config.json (`fields`).
NEUTRAL: dict[str, float | None] = {
    "expert_count": 0,
    "use_parallel_residual": False,
    "attention.causal": True,
    "attention.scale": 0.0,
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    WINDOW: 0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
}


def architecture_of(file: GgufFile) -> Architecture:
    """Returns the architecture of a file. Raises FileError if the architecture is not in `ARCHITECTURES`."""
    name = file.string("general.architecture")
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise FileError(f"{quoted(file.path, 300)} holds a model of architecture {written(name)}; glgpt reads {known}")
    return ARCHITECTURES[name]


def model_config(file: GgufFile) -> dict[str, Any]:
    """Returns the fields of a Hugging Face `config.json`. Raises FileError for missing or unsuitable metadata."""
    about = architecture_of(file)
    config: dict[str, Any] = {"model_type": about.model_type, "architectures": [about.class_name], **about.constants}
    for key, name in about.fields.items():
        value = _number(file, f"{about.name}.{key}")
        if value is not None:
            config[name] = value
    if "rope.freq_base" in about.fields:
        config.setdefault(about.fields["rope.freq_base"], 10000.0)  # llama.cpp's default
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.stored) != 2:
        raise FileError(f"{quoted(file.path, 300)}: tensor token_embd.weight is missing")
    config["vocab_size"] = embedding.stored[0]
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    if isinstance(title := file.metadata.get("general.name"), str):
        config["_model_name_or_path"] = title
    config |= _rotary(file, about, config)
    _check_neutral(file, about, config)
    return config | _SPECIAL.get(about.name, _nothing)(file, config)


def checkpoint_tensors(file: GgufFile, config: Mapping[str, Any]) -> dict[str, GgufTensor]:
    """Returns the tensors by their names in a checkpoint, with rows and axes ordered as in a checkpoint.

    Tensors that the architecture does not list retain their names. Raises FileError for an unsupported number of
    blocks.
    """
    about = architecture_of(file)
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    if not isinstance(layers, int) or not 1 <= layers <= MAX_LAYERS:
        raise FileError(f"{quoted(file.path, 300)}: {about.name}.block_count is {written(layers)}, not 1 to 1000")
    names = about.names(layers)
    found = {}
    for name, tensor in file.tensors.items():
        stem, _, kind = name.rpartition(".")
        if name == FREQUENCIES or name.startswith(FACTORS):
            continue  # `_rotary` reads these tensors
        own = stem.rpartition(".")[2]
        axes = rows_of(about, own, tensor.stored[0], config)
        shift = -about.norm_shift if own.endswith("_norm") and kind == "weight" else 0.0
        transposed = own in about.transposed and len(tensor.stored) == 2
        found[f"{names[stem]}.{kind}" if stem in names else name] = tensor.arranged(axes, transposed, shift)
    return found


def rows_of(about: Architecture, own: str, rows: int, config: Mapping[str, Any]) -> Axes | None:
    """Returns the sizes of the four axes into which the rows of a tensor are divided to reorder them.

    Exchanging the middle two axes gives the order of the rows in a checkpoint. Returns None if a checkpoint has the
    rows in the same order, or if the sizes of the model do not divide the rows. `own` is the tensor's name within its
    block, such as "attn_q".
    """
    heads = config.get("num_attention_heads", config.get("n_head"))
    shared = config.get("num_key_value_heads", heads)
    count = shared if own == "attn_k" else heads
    if not isinstance(count, int) or count < 1:
        return None
    if own in about.rotated and rows % (2 * count) == 0:
        return count, rows // count // 2, 2, 1
    if own in about.fused and rows % (3 * count) == 0:
        return 1, 3, count, rows // count // 3
    return None


def _check_neutral(file: GgufFile, about: Architecture, config: Mapping[str, Any]) -> None:
    """Raises FileError for a key of `NEUTRAL` that would have an effect and is not in the architecture's `fields`.

    Also raises it if `attention.value_length` is not the width of a head.
    """
    width = config.get("head_dim") or _ratio(config.get("hidden_size"), config.get("num_attention_heads"))
    for key, neutral in (NEUTRAL | {"attention.value_length": width}).items():
        value = None if key in about.fields else _number(file, f"{about.name}.{key}")
        if key == WINDOW and value is not None and value >= (config.get("max_position_embeddings") or math.inf):
            continue
        if value is not None and value != neutral:
            name = f"{about.name}.{key}"
            raise FileError(
                f"{quoted(file.path, 300)}: {name} is {written(value)}; glgpt runs {about.name} with {neutral}"
            )


def _number(file: GgufFile, key: str) -> Any:
    """Returns a number or flag of the metadata, or None if it is missing.

    For an array of equal elements, returns the element. Raises FileError if the elements differ, and for strings.
    """
    value = file.metadata.get(key)
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        value = value[0].item()
    if isinstance(value, np.ndarray | list | str):
        raise FileError(f"{quoted(file.path, 300)}: {key} is {written(value)}; glgpt supports one number")
    return value


def _rotary(file: GgufFile, about: Architecture, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of config.json for rotary positions: the scaling, and the share of a head that is rotated.

    Leaves out the scaling if the file has none. Leaves out the share if the whole head is rotated, except for families
    whose default is another share.
    """
    found: dict[str, Any] = {}
    prefix = f"{about.name}.rope."
    width = config.get("head_dim") or _ratio(config.get("hidden_size"), config.get("num_attention_heads"))
    rotated = _number(file, f"{prefix}dimension_count")
    share = rotated / width if width and isinstance(rotated, int) else 1.0
    if about.share:
        found[about.share] = share
    elif share != 1:
        found["partial_rotary_factor"] = share
    kind, factor = file.string(f"{prefix}scaling.type", ""), _number(file, f"{prefix}scaling.factor")
    if not factor:
        factor = _number(file, f"{prefix}scale_linear")  # in older files
    if not kind and factor not in (None, 0, 1):
        kind = "linear"
    if any(name.startswith(FACTORS) for name in file.tensors):
        return found | _longrope(file, prefix)
    if FREQUENCIES in file.tensors:
        found["rope_scaling"] = _llama3(file, config)
    elif kind not in ("", "none"):
        original = _number(file, f"{prefix}scaling.original_context_length")
        scaling = {"rope_type": kind, "factor": factor, "original_max_position_embeddings": original}
        found["rope_scaling"] = {name: value for name, value in scaling.items() if value is not None}
    return found


def _longrope(file: GgufFile, prefix: str) -> dict[str, Any]:
    """Returns LongRoPE's scaling.

    The file stores two divisors of each rotary frequency: one for texts up to the context of pretraining, and one for
    longer texts.
    """
    scaling: dict[str, Any] = {
        "rope_type": "longrope",
        "attention_factor": _number(file, f"{prefix}scaling.attn_factor"),
    }
    for name in ("short", "long"):
        tensor = file.tensors.get(f"{FACTORS}{name}.weight")
        if tensor is None or math.prod(tensor.stored) > 4096:
            raise FileError(f"{quoted(file.path, 300)}: tensor {FACTORS}{name}.weight is missing or too large")
        scaling[f"{name}_factor"] = tensor.map().astype(np.float64).ravel().tolist()
    original = _number(file, f"{prefix}scaling.original_context_length")
    return {"rope_scaling": scaling, "original_max_position_embeddings": original}


def _ratio(a: Any, b: Any) -> int | None:
    return a // b if isinstance(a, int) and isinstance(b, int) and b > 0 else None


def _llama3(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Derives Llama 3's rotary scaling from the divisors of the frequencies, which the file stores.

    Raises FileError if the divisors are not those of Llama 3's scaling.
    """
    stored = file.tensors[FREQUENCIES].map().astype(np.float64).ravel()
    factor = float(stored.max(initial=1.0))
    if 0 < len(stored) <= 4096 and math.isfinite(factor):
        scaling = {"rope_type": "llama3", "factor": factor, **LLAMA3}
        theta = config.get("rope_theta", 10000.0)
        if isinstance(theta, float | int) and np.allclose(stored, llama3_divisors(scaling, theta, len(stored)), 1e-4):
            return scaling
    raise FileError(f"{quoted(file.path, 300)}: tensor {FREQUENCIES} does not hold the rotary scaling of Llama 3")


def llama3_divisors(scaling: Mapping[str, Any], theta: float, count: int) -> NDArray[np.float64]:
    """Returns the number by which Llama 3 divides each of `count` rotary frequencies."""
    with np.errstate(all="ignore"):  # numbers of a damaged file may overflow or divide by zero
        return _llama3_divisors(scaling, theta, count)


def _llama3_divisors(scaling: Mapping[str, Any], theta: float, count: int) -> NDArray[np.float64]:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    rounds = scaling["original_max_position_embeddings"] / (2 * math.pi) / float(theta) ** (np.arange(count) / count)
    blend = np.clip((rounds - low) / (high - low), 0, 1)
    divisors: NDArray[np.float64] = 1 / (blend + (1 - blend) / scaling["factor"])
    return divisors


# Fields of config.json that follow from other fields


def _nothing(_file: GgufFile, _config: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _gpt2(_file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `n_inner`. Four times the model's width is returned as None, transformers' default."""
    inner, width = config.get("n_inner"), config.get("n_embd")
    return {"n_inner": None if isinstance(width, int) and inner == 4 * width else inner}


def _attention_scalar(config: Mapping[str, Any], largest: int) -> dict[str, Any]:
    """Returns `query_pre_attn_scalar`, the number whose inverse square root scales attention's scores.

    It is `head_dim`, except in the family's largest model, which has `largest` layers and uses the hidden size divided
    by the number of heads.
    """
    width = _ratio(config.get("hidden_size"), config.get("num_attention_heads"))
    scalar = width if config.get("num_hidden_layers") == largest else config.get("head_dim", width)
    return {"query_pre_attn_scalar": scalar}


def _gemma2(_file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    return _attention_scalar(config, 46) | {"layer_types": _layers(config, 2)}


def _gemma3(_file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    return _attention_scalar(config, 62) | {"layer_types": _layers(config, 6)}


def _layers(config: Mapping[str, Any], period: int) -> list[str]:
    """Returns each layer's kind of attention: full in every `period`-th layer, a sliding window in the others."""
    layers = config.get("num_hidden_layers")
    count = layers if isinstance(layers, int) and 0 < layers <= MAX_LAYERS else 0
    return ["sliding_attention" if (i + 1) % period else "full_attention" for i in range(count)]


def _smollm3(_file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `no_rope_layers`: 1 for each layer with rotary positions, 0 for every fourth layer, which has none."""
    kinds = _layers(config, config["no_rope_layer_interval"])
    return {"no_rope_layers": [int(kind == "sliding_attention") for kind in kinds]}


def _phi3(_file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `sliding_window`, which is None if the file has 0 or no value."""
    return {"sliding_window": config.get("sliding_window") or None}


_SPECIAL: dict[str, Callable[[GgufFile, Mapping[str, Any]], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "smollm3": _smollm3,
    "phi3": _phi3,
}
