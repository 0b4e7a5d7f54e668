"""Makes the golden of a training run for `make.py`: torch's float64 results of ten steps of a tiny GPT-2.

The folder holds a float16 checkpoint and `training.npz`, with these arrays:

- `inputs` and `targets` [steps, batch, context]
- `setting.NAME`: the settings of AdamW (only matrices decay) and of clipping
- `logits` of the first batch before the first step
- `losses` and `norms`: for each step, its loss, and the norm of all gradients together
- `norm.NAME` and `slice.NAME`: the norm of a parameter's gradient in the first step, and up to sixteen of its values,
  evenly spaced
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

FIELDS = {"vocab_size": 43, "n_positions": 20, "n_embd": 18, "n_layer": 2, "n_head": 3, "n_inner": 29}
STEPS, BATCH, CONTEXT = 10, 3, 13
SETTINGS = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
SLICE = 16


def make_training(folder: Path, seed: int) -> None:
    """Writes the checkpoint and the results of the training run."""
    fields = FIELDS | dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    fields |= {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**fields, attn_implementation="eager")).double()
    rng = np.random.default_rng(seed)
    stored = {}
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            mean = 1.0 if ".ln_" in name and name.endswith("weight") else 0.0
            stored[name] = torch.from_numpy(rng.normal(mean, 0.3, parameter.shape)).half()
            parameter.copy_(stored[name].double())
    folder.mkdir(parents=True, exist_ok=True)
    kind = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "dtype": "float16"}
    (folder / "config.json").write_text(json.dumps(kind | fields, indent=1) + "\n")
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    inputs, targets = rng.integers(0, FIELDS["vocab_size"], (2, STEPS, BATCH, CONTEXT)).astype(np.int16)
    found = {f"setting.{name}": np.array(value) for name, value in SETTINGS.items()}
    found |= {"inputs": inputs, "targets": targets} | trained(model, inputs.astype(int), targets.astype(int))
    np.savez_compressed(folder / "training.npz", **found)


def trained(model: GPT2LMHeadModel, inputs: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
    """Takes the steps. Returns the arrays of logits, losses and gradients."""
    s, decayed = SETTINGS, [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": decayed, "weight_decay": s["weight_decay"]}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=s["lr"], betas=(s["beta1"], s["beta2"]), eps=s["eps"])
    found, losses, norms = {}, [], []
    for x, y in zip(inputs, targets, strict=True):
        logits = model(torch.from_numpy(x), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten())
        optimizer.zero_grad()
        loss.backward()
        if not losses:
            found["logits"] = logits.detach().numpy().astype(np.float32)
            for name, parameter in model.named_parameters():
                gradient, short = parameter.grad.flatten(), name.removeprefix("transformer.")
                found[f"norm.{short}"] = gradient.norm().numpy()
                found[f"slice.{short}"] = gradient[:: -(-len(gradient) // SLICE)].numpy().copy()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), s["clip"]).item())
        optimizer.step()
    return found | {"losses": np.array(losses), "norms": np.array(norms)}
