"""Tests the tolerance of comparisons: on a deep model, other kernels are within the tolerance, and faults are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.soak import mostly_soak
from numpy.typing import NDArray

from glgpt.inference.model import LanguageModel
from glgpt.models.families.llama import LlamaConfig
from glgpt.program.tolerance import Tolerance, kl_divergence, tokens_first
from glgpt.tuning.kernel_selection import DeviceSettings

Weights = dict[str, NDArray[np.float32]]
Found = dict[str, NDArray[np.float32]]
CONFIG = LlamaConfig(96, 32, 64, 14, 4, 2, 256, None, 1e-5, 10000.0, None, True)
IDS = np.random.default_rng(2).integers(0, 96, 12).tolist()
BLOCK = "layers.6."


class Checkpoint:
    """Weights in memory, with the interface that `LanguageModel` reads."""

    adapter = None

    def __init__(self, weights: Weights, config: LlamaConfig) -> None:
        self.config, self.weights, self.path, self.name = config, weights, Path("deep"), "deep"

    def read(self, name: str) -> NDArray[np.float32]:
        return self.weights[name]

    def dtype(self, name: str) -> str:
        return "F32"

    def blocks(self, name: str) -> None:
        """Returns None: no weights are quantized."""


def deep_weights() -> Weights:
    """Returns weights whose block 2 writes massive activations into two columns, as in SmolLM2.

    Norms scale these two columns down.
    """
    rng = np.random.default_rng(1)
    found = {}
    for name, p in CONFIG.parameters.items():
        values = rng.standard_normal(p.shape).astype(np.float32)
        found[name] = 1 + 0.2 * values if len(p.shape) == 1 else values * np.float32(p.shape[-1] ** -0.5)
        if name.endswith("layernorm.weight"):
            found[name][[5, 40]] *= 0.02
    found["layers.2.mlp.down_proj.weight"][[5, 40]] *= 300
    return found


def run(weights: Weights, dtype: str, kernel: str = "auto", names: Any = None, **config: float) -> Found:
    """Returns the last token's values of every activation, and the logits."""
    checkpoint: Any = Checkpoint(weights, replace(CONFIG, **config))
    with LanguageModel(checkpoint, None, dtype, settings=DeviceSettings(device="software", kernel=kernel)) as model:
        logits, found = model.run_with_cache(IDS, names)
    return {name: tokens_first(values)[-1:] for name, values in (found | {"logits": logits}).items()}


@cache
def base(dtype: str) -> Found:
    return run(deep_weights(), dtype)


def excess(found: Found, dtype: str) -> float:
    """Returns the greatest difference from `base`, as a multiple of the tolerance."""
    tolerance = Tolerance.of(dtype, CONFIG.n_layer, same_weights=True)
    return max(tolerance.measure(values, base(dtype)[name]).excess for name, values in found.items())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", mostly_soak(["f32", "f16", "q4"], ("f32",)))
def test_other_kernels_and_other_fused_passes_are_within(dtype: str) -> None:
    """Fails if rounding alone exceeds the tolerance of a deep model."""
    half = [a.name for a in CONFIG.activations.values() if a.layer is None or a.layer > 7]
    assert excess(run(deep_weights(), dtype, "4x8"), dtype) < 0.5
    assert excess(run(deep_weights(), dtype, names=half), dtype) < 0.5


def swap_keys_and_values(w: Weights) -> None:
    k, v = (f"{BLOCK}self_attn.{name}_proj.weight" for name in "kv")
    w[k], w[v] = w[v], w[k]


def skip(w: Weights) -> None:
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        w[f"{BLOCK}{name}.weight"][:] = 0


def turn_one_head(w: Weights) -> None:
    q = w[f"{BLOCK}self_attn.q_proj.weight"]
    q[: CONFIG.d_head] = np.roll(q[: CONFIG.d_head], CONFIG.d_head // 2, axis=0)


def clear_row(w: Weights) -> None:
    w[f"{BLOCK}mlp.down_proj.weight"][9] = 0


def scale_group(w: Weights) -> None:
    w[f"{BLOCK}mlp.down_proj.weight"][7, 128:] *= 2


def double_gain(w: Weights) -> None:
    w[f"{BLOCK}input_layernorm.weight"][3] *= 2


FAULTS = (swap_keys_and_values, skip, turn_one_head, clear_row, scale_group, double_gain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        *((fault, "f16") for fault in FAULTS),
        *mostly_soak([(fault, dtype) for fault in (clear_row, scale_group) for dtype in ("f32", "q8")], ()),
    ],
)
def test_a_fault_is_beyond(fault: Callable[[Weights], None], dtype: str) -> None:
    """Fails if a fault in one block of fourteen is taken for rounding."""
    weights = deep_weights()
    fault(weights)
    assert excess(run(weights, dtype), dtype) > 2


@pytest.mark.slow
@pytest.mark.parametrize("config", [{"layer_norm_epsilon": 1e-2}, {"rope_theta": 5000.0}])
def test_a_wrong_config_is_beyond(config: dict[str, float]) -> None:
    assert excess(run(deep_weights(), "f16", **config), "f16") > 2


def test_a_single_value_counts() -> None:
    """Fails if the root mean square of all logits hides a wrong one."""
    reference = np.random.default_rng(0).standard_normal((3, 50_000))
    ours = reference.copy()
    ours[1, 77] += 1
    measured = Tolerance.of("f16", 30).measure(ours, reference)
    assert measured.relative < 0.003 and measured.excess > 3 and measured.at == (1, 77)


def test_values_that_are_not_finite_must_be_the_same() -> None:
    inf, nan = np.inf, np.nan
    reference = np.array([[1.1, -inf, 1.0, nan, 0.0, -inf]])
    for i, value in enumerate([None, 0.0, inf, 1.0, nan, inf]):
        ours = reference.copy()
        if value is not None:
            ours[0, i] = value
        measured = Tolerance(1e-3).measure(ours, reference)
        assert (measured.excess, measured.at[1]) == ((0, 0) if value is None else (inf, i))


def test_absolute_tolerances_hold_each_value() -> None:
    tolerance = Tolerance(1.0, absolute=(0.05, 0.1))
    ours, reference = np.array([[1.0, 2.0]]), np.array([[1.0, 1.0]])
    assert tolerance.measure(ours, reference).excess == pytest.approx(1 / 0.15)
    assert Tolerance(1.0, absolute=(0.0, 0.0)).measure(ours, reference).excess == np.inf
    assert Tolerance(1.0, absolute=(0.0, 0.0)).measure(reference, reference).excess == 0


def test_a_tie_is_within_the_relative_error() -> None:
    logits = np.array([1.0, 10.0, 9.95, 9.0, 0.0])
    assert Tolerance(0.02).ties(logits, 1, 2) and not Tolerance(0.02).ties(logits, 1, 3)


def test_kl_divergence_is_that_of_the_definition() -> None:
    random = np.random.default_rng(1)
    p, q = random.standard_normal((2, 5, 11)) * 4
    a, b = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (p, q))
    assert kl_divergence(p, q) == pytest.approx((a * np.log(a / b)).sum(axis=1), rel=1e-9)
    assert kl_divergence(p, p + 7.0) == pytest.approx(np.zeros(5), abs=1e-12)
    p[:, 3] = q[:, 3] = -np.inf  # masked in both
    assert np.isfinite(kl_divergence(p, q)).all()
