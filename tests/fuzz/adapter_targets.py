"""Defines LoRA adapters as a fuzzing target: hostile settings and weights for a small model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from harness import Difference, Parser
from mutations import Files
from safetensors.numpy import load, save

from glgpt.checkpoint.adapters.lora import CONFIG
from glgpt.checkpoint.opening import Checkpoint

MODEL = Path(__file__).parents[1] / "goldens/llama-grouped"
WEIGHTS = "adapter_model.safetensors"


def _seeds() -> list[Files]:
    """Returns the files of an adapter for three weights, with settings of every kind."""
    draw, tensors = np.random.default_rng(0), {}
    with Checkpoint.open(MODEL) as checkpoint:
        for role in ("q", "down", "up"):
            name = checkpoint.config.tensor(role, 0)
            out, into = checkpoint.config.parameters[f"{name}.weight"].shape
            for kind, shape in (("A", (2, into)), ("B", (out, 2))):
                tensors[f"base_model.model.model.{name}.lora_{kind}.weight"] = draw.standard_normal(shape, np.float32)
    fields = {
        "peft_type": "LORA", "r": 8, "lora_alpha": 4, "rank_pattern": {"q_proj": 2, "mlp.(up|down)_proj": 2},
        "alpha_pattern": {r"layers\.\d\.self_attn\..*": 3.5}, "use_rslora": True, "bias": "none", "use_dora": False,
    }  # fmt: skip
    return [{CONFIG: json.dumps(fields).encode(), WEIGHTS: save(tensors)}]


def _adapter(folder: Path) -> None:
    with Checkpoint.open(MODEL) as plain, Checkpoint.open(MODEL, folder) as adapted:
        factors = load((folder / WEIGHTS).read_bytes())
        for name in filter(adapted.adapts, adapted.names):
            stem = f"base_model.model.model.{name.removesuffix('.weight')}"
            a, b = (factors[f"{stem}.lora_{kind}.weight"].astype(np.float64) for kind in "AB")
            change, found = b @ a, adapted.read(name).astype(np.float64) - plain.read(name)
            scale = np.vdot(found, change) / max(np.vdot(change, change), 1e-30)
            near = 1e-5 * (np.abs(adapted.read(name)).max() + np.abs(found).max() + 1e-6)
            if not np.abs(found - scale * change).max() <= near:
                raise Difference(f"{name} is not changed by a multiple of B A")


ADAPTERS = Parser("adapter", _seeds, _adapter)
