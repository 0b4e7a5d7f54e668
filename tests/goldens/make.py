"""Writes the golden checkpoints of this folder: tiny models of odd shapes, and transformers' results for them.

    python tests/goldens/make.py           writes the goldens again
    python tests/goldens/make.py --check   compares this folder's goldens with goldens made in a temporary folder

Needs torch and transformers, which `make test` does not need. `training` is the golden of a training run
(`make_training.py`). Each other folder holds `config.json`, weights in one of the layouts of published checkpoints, and
`reference.npz`: `tokens` [T], `logits` [T, vocab], `greedy` (prompt and up to 16 greedy ids), and every activation
under its dotted name. Transformers computes these in float64 (norms of Llama: float32) with eager attention; they are
stored in float32. `checksums.json` has the SHA-256 of each tensor's values as row-major little-endian float32.
"""

from __future__ import annotations

import argparse
import filecmp
import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_llama import LLAMAS, make_llama
from make_reference import with_greedy
from make_training import make_training
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

HERE = Path(__file__).resolve().parent
NEAR = 1e-6  # tolerance: more than the rounding of float64 to float32
LLAMA_NEAR = 1e-5  # transformers computes Llama's norms in float32, whose sums depend on the processor (by up to 2e-6)
# Seed of the first case; each later case has the next seed. With other seeds, a greedy choice may be a near tie, which
# `with_greedy` refuses.
SEED = 3
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

# name: (config, number of `tokens`, stored dtype, layout, True if names begin with `transformer.`)
CASES: dict[str, tuple[dict[str, Any], int, str, str, bool]] = {
    "vocab3-untied": (
        {"vocab_size": 3, "n_positions": 10, "n_embd": 12, "n_layer": 2, "n_head": 3, "tie_word_embeddings": False},
        7,
        "F32",
        "safetensors",
        True,
    ),
    "dhead2-gelu": (
        {"vocab_size": 37, "n_positions": 70, "n_embd": 10, "n_layer": 2, "n_head": 5, "n_inner": 13}
        | {"activation_function": "gelu", "layer_norm_epsilon": 1e-3},
        70,
        "F32",
        "sharded",
        False,
    ),
    "dhead3-relu": (
        {"vocab_size": 30, "n_positions": 24, "n_embd": 9, "n_layer": 1, "n_head": 3, "n_inner": 7}
        | {"activation_function": "relu", "scale_attn_weights": False},
        17,
        "F32",
        "bin",
        True,
    ),
    "inverse-layer-f16": (
        {"vocab_size": 41, "n_positions": 70, "n_embd": 12, "n_layer": 3, "n_head": 3}
        | {"scale_attn_by_inverse_layer_idx": True},
        33,
        "F16",
        "safetensors",
        False,
    ),
    "bf16": (
        {"vocab_size": 18, "n_positions": 24, "n_embd": 20, "n_layer": 2, "n_head": 1, "n_inner": 30},
        20,
        "BF16",
        "safetensors",
        True,
    ),
    "legacy-untied": (
        {"vocab_size": 29, "n_positions": 16, "n_embd": 14, "n_layer": 1, "n_head": 2, "n_inner": 21}
        | {"tie_word_embeddings": False, "activation_function": "gelu"},
        16,
        "F32",
        "legacy",
        True,
    ),
    "wide": (
        {"vocab_size": 130, "n_positions": 40, "n_embd": 48, "n_layer": 2, "n_head": 4},
        29,
        "F32",
        "safetensors",
        True,
    ),
    "one-f16": (
        {"vocab_size": 5, "n_positions": 1, "n_embd": 1, "n_layer": 1, "n_head": 1, "n_inner": 1},
        1,
        "F16",
        "bin",
        False,
    ),
}


def make(name: str, folder: Path, seed: int) -> dict[str, str]:
    """Writes one golden into `folder`. Returns the checksum of each tensor, by canonical name."""
    fields, length, dtype, layout, prefix = CASES[name]
    fields = fields | {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(**fields)
    config._attn_implementation = "eager"
    model = GPT2LMHeadModel(config).double().eval()
    rng = np.random.default_rng(seed)
    stored: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for full, parameter in sorted(model.named_parameters()):
            # The spread is wide enough for sharp attention and for the whole curve of each activation function. The
            # weights of norms are around one.
            values = rng.normal(1.0 if ".ln_" in full and full.endswith("weight") else 0.0, 0.3, parameter.shape)
            tensor = torch.from_numpy(values).to(DTYPES[dtype])
            parameter.copy_(tensor.double())
            stored[full if prefix else full.removeprefix("transformer.")] = tensor.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    kind = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "dtype": str(DTYPES[dtype])[len("torch.") :]}
    (folder / "config.json").write_text(json.dumps(kind | fields, indent=1) + "\n")
    save(folder, stored, layout)
    tokens = rng.integers(0, config.vocab_size, length)
    np.savez_compressed(folder / "reference.npz", **reference(model, tokens))
    return {
        full.removeprefix("transformer."): hashlib.sha256(value.float().numpy().tobytes()).hexdigest()
        for full, value in sorted(stored.items())
    }


def save(folder: Path, tensors: dict[str, torch.Tensor], layout: str) -> None:
    """Writes the weights in one of the four layouts."""
    if layout == "safetensors":
        save_safetensors(folder / "model.safetensors", tensors)
    elif layout == "sharded":
        names, shards = sorted(tensors), {}
        for number, part in enumerate((names[::2], names[1::2]), 1):
            file = f"model-{number:05}-of-00002.safetensors"
            save_safetensors(folder / file, {name: tensors[name] for name in part})
            shards |= dict.fromkeys(part, file)
        index = {"metadata": {}, "weight_map": dict(sorted(shards.items()))}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    else:
        # One tensor is not contiguous, as in checkpoints converted from TensorFlow.
        name = next(name for name in tensors if name.endswith("c_attn.weight"))
        tensors = tensors | {name: tensors[name].t().contiguous().t()}
        torch.save(tensors, folder / "pytorch_model.bin", _use_new_zipfile_serialization=layout == "bin")


def save_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes one safetensors file and makes it readable for all users; the library creates it with mode 0600."""
    save_file(tensors, path, {"format": "pt"})
    path.chmod(0o644)


@torch.no_grad()
def reference(model: GPT2LMHeadModel, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the logits, the greedy continuation and every activation of `model`, a float64 model."""
    config = model.config
    body, ids = model.transformer, torch.from_numpy(tokens)[None]
    caught: dict[str, torch.Tensor] = {}

    def catch(name: str) -> Any:
        return lambda module, args, output: caught.__setitem__(
            name, (output[0] if isinstance(output, tuple) else output)[0]
        )

    def catch_input(name: str) -> Any:
        return lambda module, args: caught.__setitem__(name, args[0][0])

    hooks = [body.drop.register_forward_hook(catch("embed")), body.ln_f.register_forward_hook(catch("ln_f"))]
    for i, block in enumerate(body.h):
        h = f"h.{i}."
        hooks += [
            block.ln_1.register_forward_hook(catch(h + "ln_1")),
            block.attn.c_attn.register_forward_hook(catch(h + "qkv")),
            block.attn.c_proj.register_forward_pre_hook(catch_input(h + "attn.z")),
            block.attn.register_forward_hook(catch(h + "attn.out")),
            block.ln_2.register_forward_pre_hook(catch_input(h + "resid_mid")),
            block.ln_2.register_forward_hook(catch(h + "ln_2")),
            block.mlp.c_fc.register_forward_hook(catch(h + "mlp.pre")),
            block.mlp.act.register_forward_hook(catch(h + "mlp.act")),
            block.mlp.c_proj.register_forward_hook(catch(h + "mlp.out")),
            block.register_forward_hook(catch(h + "resid_post")),
        ]
    run = model(ids, output_hidden_states=True, output_attentions=True, use_cache=False)
    for hook in hooks:
        hook.remove()

    assert run.logits.dtype == torch.float64
    close(caught["embed"], body.wte(ids)[0] + body.wpe.weight[: len(tokens)])
    above = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
    for i in range(config.n_layer):
        h = f"h.{i}."
        heads = [part.unflatten(1, (config.n_head, -1)).transpose(0, 1) for part in caught.pop(h + "qkv").chunk(3, 1)]
        for part, value in zip("qkv", heads, strict=True):
            caught[h + "attn." + part] = value
        q, k, v = heads
        scale = q.shape[-1] ** -0.5 if config.scale_attn_weights else 1.0
        scale /= i + 1 if config.scale_attn_by_inverse_layer_idx else 1
        scores = (q @ k.transpose(1, 2) * scale).masked_fill(above, -torch.inf)
        caught[h + "attn.scores"], caught[h + "attn.pattern"] = scores, scores.softmax(-1)
        # The values that this script recomputes must equal transformers'.
        close(caught[h + "attn.pattern"], run.attentions[i][0])
        close((caught[h + "attn.pattern"] @ v).transpose(0, 1).flatten(1), caught[h + "attn.z"])
        before = caught[f"h.{i - 1}.resid_post"] if i else caught["embed"]
        close(before, run.hidden_states[i][0])
        close(before + caught[h + "attn.out"], caught[h + "resid_mid"])
        close(caught[h + "resid_mid"] + caught[h + "mlp.out"], caught[h + "resid_post"])
    close(caught["ln_f"], run.hidden_states[-1][0])
    close(model.lm_head(caught["ln_f"]), run.logits[0])
    caught["logits"] = run.logits[0]

    return with_greedy(model, tokens, caught, config.n_positions)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    """Fails unless the values of two float64 tensors differ by at most 1e-12 (1 + |b|)."""
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def make_all(folder: Path) -> None:
    """Writes every golden and `checksums.json` into `folder`."""
    checksums = {name: make(name, folder / name, seed) for seed, name in enumerate(CASES, SEED)}
    first = SEED + len(CASES)
    checksums |= {name: make_llama(name, folder / name, seed, save) for seed, name in enumerate(LLAMAS, first)}
    (folder / "checksums.json").write_text(json.dumps(checksums, indent=1) + "\n")
    make_training(folder / "training", SEED)


def differences(made: Path, kept: Path) -> list[str]:
    """Returns the files that `kept` lacks, or whose weights differ, or whose references differ beyond the tolerance."""
    found = []
    for file in sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file()):
        if not (kept / file).exists():
            found.append(f"{file} is missing")
        elif file.suffix == ".bin":  # compares tensors, since torch's older format contains memory addresses
            new, old = (torch.load(root / file, weights_only=True) for root in (made, kept))
            if list(new) != list(old) or not all(new[key].equal(old[key]) for key in new):
                found.append(f"{file} differs")
        elif file.suffix != ".npz":
            found += [] if filecmp.cmp(made / file, kept / file, shallow=False) else [f"{file} differs"]
        else:
            with np.load(made / file) as a, np.load(kept / file) as b:
                same = set(a) == set(b) and all(a[key].shape == b[key].shape for key in a)
                near = LLAMA_NEAR if file.parts[0] in LLAMAS else NEAR
                if not (same and all(np.allclose(a[key], b[key], rtol=near, atol=near) for key in a)):
                    found.append(f"{file} differs")
    return found


def main() -> int:
    """Writes or checks the goldens. Returns 1 if the check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if not parser.parse_args().check:
        make_all(HERE)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        make_all(Path(folder))
        found = differences(Path(folder), HERE)
    print("\n".join(found) or "the goldens equal those of the installed transformers")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
