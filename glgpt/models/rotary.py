"""Computes the rotary positions of a model: the frequency of each pair of columns of a head, after scaling.

A scaling changes the frequencies of pretraining, so that a model can use a longer context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from glgpt.errors import GlgptError, written

if TYPE_CHECKING:
    from glgpt.models.spec import ModelConfig


class Angles(NamedTuple):
    """Describes how a layer rotates queries and keys.

    `frequencies` has, for each pair of columns, the radians of its rotation per position; if it is empty, nothing
    rotates. Rotated columns are multiplied by `factor`.
    """

    frequencies: tuple[float, ...]
    factor: float


# rope_type -> names in config.json of the numbers in `ModelConfig.rope_scaling`
SCALINGS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "beta_fast", "beta_slow", "original_max_position_embeddings", "attention_factor", "truncate"),
    "dynamic": ("factor",),  # changes nothing within max_position_embeddings
    # attention_factor, then a divisor for each frequency; the context is limited to that of pretraining
    "longrope": ("attention_factor",),
}
ORIGINAL = "original_max_position_embeddings"


def frequencies(theta: float, width: int, kind: str = "default", scaling: Sequence[float] = ()) -> tuple[float, ...]:
    """Returns, for each pair of the `width` columns, the radians of its rotation per position (Su et al. 2021).

    `theta` is the base; `kind` is a key of `SCALINGS`, and `scaling` has the numbers of that kind.
    """
    plain = [theta ** (-2 * i / width) for i in range(width // 2)]
    if kind == "linear":
        return tuple(f / scaling[0] for f in plain)
    if kind == "llama3":
        return tuple(_llama3(f, *scaling) for f in plain)
    if kind == "yarn":
        return _yarn(plain, theta, width, scaling)
    if kind == "longrope":
        return tuple(f / divisor for f, divisor in zip(plain, scaling[1:], strict=True))
    return tuple(plain)


def _llama3(f: float, factor: float, low: float, high: float, original: float) -> float:
    """Returns a frequency after the scaling of Llama 3.

    Divides low frequencies by `factor`, and medium ones by less; high ones stay unchanged.
    """
    turns = original * f / (2 * math.pi)  # number of turns within the context of pretraining
    blend = min(1.0, max(0.0, (turns - low) / (high - low)))
    return f * blend + f / factor * (1 - blend)


def _yarn(plain: list[float], theta: float, width: int, scaling: Sequence[float]) -> tuple[float, ...]:
    """Returns frequencies after the scaling of YaRN (Peng et al. 2023).

    Divides low frequencies by `factor`; high ones stay unchanged. A frequency in between becomes a weighted mean of its
    divided and its unchanged value; the weights change linearly from one pair of columns to the next.
    """
    factor, fast, slow, original, _, truncate = scaling

    def pair(turns: float) -> float:
        return width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair(fast), pair(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    high = high if high != low else high + 0.001
    ramp = [min(1.0, max(0.0, (i - low) / (high - low))) for i in range(width // 2)]
    return tuple(f * (1 - r) + f / factor * r for f, r in zip(plain, ramp, strict=True))


def scaling_factor(kind: str, scaling: Sequence[float]) -> float:
    """Returns the factor by which rotated columns are multiplied: 1, except in YaRN and LongRoPE."""
    return scaling[SCALINGS[kind].index("attention_factor")] if kind in ("yarn", "longrope") else 1.0


def read_rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `ModelConfig` for the rotary positions that a config.json describes.

    The file has them in `rope_parameters` or `rope_scaling`, or at its top level. Raises GlgptError for an unknown
    scaling or for numbers that are missing or not above 0.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, Mapping):
        raise GlgptError(f"config: rope_scaling is {written(rope)}; it must be an object")
    names = {"rope_theta": "rope_theta", "partial_rotary_factor": "rotary_share"}
    found = {own: config[key] for key, own in names.items() if key in config}
    found |= {own: rope[key] for key, own in names.items() if key in rope}
    kind = rope.get("rope_type", rope.get("type", "default"))
    kind = "longrope" if kind == "su" else kind  # the former name of longrope
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise GlgptError(f"config: rope_type is {written(kind)}; glgpt runs {', '.join(map(repr, SCALINGS))}")
    if kind == "longrope":
        return found | {"rope_type": kind} | _longrope(rope, config)
    read: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] = (
        _yarn_values if kind == "yarn" else (lambda rope, _: rope)
    )
    values = [read(rope, config).get(name) for name in SCALINGS[kind]]
    given = {n: v for n, v in zip(SCALINGS[kind], values, strict=True) if n != "truncate"}
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < math.inf for v in given.values()):
        raise GlgptError(f"config: {kind}'s rope scaling must give {', '.join(SCALINGS[kind])} as numbers above 0")
    return found | {"rope_type": kind, "rope_scaling": tuple(float(v) for v in values if v is not None) or None}


def _yarn_values(rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers of YaRN by name, with the defaults of transformers.

    Raises GlgptError if `mscale` or `mscale_all_dim` is set, which glgpt does not support.
    """
    for name in ("mscale", "mscale_all_dim"):
        if rope.get(name):
            raise GlgptError(f"config: {name} is {written(rope[name])}; glgpt runs yarn without it")
    found: dict[str, Any] = {"beta_fast": 32, "beta_slow": 1, "truncate": 1}
    found["original_max_position_embeddings"] = config.get("max_position_embeddings")
    found |= {name: value for name, value in rope.items() if value is not None}
    found["truncate"] = int(bool(found["truncate"]))
    factor = found.get("factor")
    if found.get("attention_factor") is None and isinstance(factor, (int, float)):
        found["attention_factor"] = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return found


def _longrope(rope: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields for LongRoPE (Ding et al. 2024): `n_positions` and `rope_scaling`.

    The context is limited to that of pretraining, so only `short_factor` is needed: the divisors of the frequencies for
    short texts. Raises GlgptError for missing or bad numbers.
    """
    largest, original = config.get("max_position_embeddings"), config.get(ORIGINAL, rope.get(ORIGINAL))
    for name, value in {"max_position_embeddings": largest, ORIGINAL: original}.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 2:
            raise GlgptError(f"config: {name} is {written(value)}; longrope needs an integer of at least 2")
    given, divisors = rope.get("factor"), rope.get("short_factor")
    factor = largest / original if given is None else given
    scale = rope.get("attention_factor")
    numbers = [factor, 1.0 if scale is None else scale, *(divisors if isinstance(divisors, list) else [None])]
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < math.inf for v in numbers):
        raise GlgptError("config: longrope's rope scaling must give short_factor as a list of numbers above 0")
    scale = math.sqrt(1 + math.log(max(1.0, factor)) / math.log(original)) if scale is None else scale
    return {"n_positions": min(largest, original), "rope_scaling": (scale, *numbers[2:])}


def published_rope(config: ModelConfig) -> dict[str, Any]:
    """Returns the `rope_parameters` of the config.json of a model: the reverse of `read_rope`."""
    names = SCALINGS[config.rope_type]
    found: dict[str, Any] = {"rope_type": config.rope_type, "rope_theta": config.rope_theta}
    found |= {"partial_rotary_factor": config.rotary_share} if config.rotary_share != 1 else {}
    found |= dict(zip(names, config.rope_scaling or (), strict=config.rope_type != "longrope"))
    if config.rope_type == "longrope":
        divisors = list(config.rope_scaling or ())[1:]
        found |= {"short_factor": divisors, "long_factor": divisors, ORIGINAL: config.n_positions}
    found |= {name: int(found[name]) for name in (ORIGINAL,) if name in found}
    return found | ({"truncate": bool(found["truncate"])} if "truncate" in found else {})


def check_rotary(config: ModelConfig) -> None:
    """Raises GlgptError for a scaling whose numbers are missing or bad, or if an odd number of columns rotates.

    Converts the numbers of the scaling to float. If there are numbers without a type, sets the type to Llama 3's.
    """
    scaling = config.rope_scaling
    if scaling is not None:
        object.__setattr__(config, "rope_scaling", tuple(map(float, scaling)))
        if not all(0 <= value < math.inf for value in config.rope_scaling or ()):
            raise GlgptError(f"config: rope_scaling is {written(scaling)}; it must hold finite numbers of at least 0")
    if scaling and config.rope_type == "default":  # numbers without a type are Llama 3's
        object.__setattr__(config, "rope_type", "llama3")
    kind = config.rope_type
    divisors = config.d_rotary // 2 if kind == "longrope" else 0
    if kind not in SCALINGS or len(config.rope_scaling or ()) != len(SCALINGS[kind]) + divisors:
        raise GlgptError(f"config: rope_type {written(kind)} does not have the numbers {written(scaling)}")
    if kind == "yarn" and config.rope_theta <= 1:
        raise GlgptError(f"config: rope_theta is {config.rope_theta:g}; yarn needs more than 1")
    if kind == "llama3":
        _, low, high, _ = config.rope_scaling or ()
        if low >= high:
            raise GlgptError(f"config: low_freq_factor {low:g} is not below high_freq_factor {high:g}")
    if config.d_rotary % 2:
        raise GlgptError(f"config: {config.d_rotary} columns of a head rotate; rotary positions need an even width")
