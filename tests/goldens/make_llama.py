"""Makes the goldens of the Llama family for `make.py`: tiny models of odd shapes, and transformers' results."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_reference import with_greedy
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

# name: (config, length of the prompt, stored dtype, layout)
LLAMAS: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "llama-grouped": (
        {"vocab_size": 61, "max_position_embeddings": 70, "hidden_size": 24, "num_hidden_layers": 2}
        | {"num_attention_heads": 3, "num_key_value_heads": 1, "intermediate_size": 37, "rms_norm_eps": 1e-3}
        | {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        41,
        "F32",
        "sharded",
    ),
    "llama3-untied": (
        {"vocab_size": 30, "max_position_embeddings": 40, "hidden_size": 20, "num_hidden_layers": 2, "head_dim": 6}
        | {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 21, "tie_word_embeddings": False}
        | {
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 300.0, "factor": 8.0, "low_freq_factor": 1.0}
            | {"high_freq_factor": 4.0, "original_max_position_embeddings": 32}
        },
        17,
        "BF16",
        "safetensors",
    ),
}
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


def make_llama(name: str, folder: Path, seed: int, save: Any) -> dict[str, str]:
    """Writes one golden into `folder`. Returns the checksum of each tensor, by canonical name."""
    fields, length, dtype, layout = LLAMAS[name]
    config = LlamaConfig(**fields, bos_token_id=0, eos_token_id=0)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).double().eval()
    rng = np.random.default_rng(seed)
    stored: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for full, parameter in sorted(model.named_parameters()):
            values = rng.normal(1.0 if "norm" in full else 0.0, 0.3, parameter.shape)
            tensor = torch.from_numpy(values).to(DTYPES[dtype])
            parameter.copy_(tensor.double())
            stored[full] = tensor.contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    kind |= {"dtype": str(DTYPES[dtype])[len("torch.") :], "bos_token_id": 0, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(kind | fields, indent=1) + "\n")
    save(folder, stored, layout)
    tokens = rng.integers(0, config.vocab_size, length)
    np.savez_compressed(folder / "reference.npz", **reference(model, tokens))
    return {
        full.removeprefix("model."): hashlib.sha256(value.float().numpy().tobytes()).hexdigest()
        for full, value in sorted(stored.items())
    }


@torch.no_grad()
def reference(model: LlamaForCausalLM, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the logits, the greedy continuation and every activation of `model`, a float64 model."""
    config, body, ids = model.config, model.model, torch.from_numpy(tokens)[None]
    caught: dict[str, torch.Tensor] = {}
    angles: list[Any] = []

    def after(name: str) -> Any:
        return lambda _, __, output: caught.__setitem__(name, (output[0] if isinstance(output, tuple) else output)[0])

    def before(name: str) -> Any:
        return lambda _, args: caught.__setitem__(name, args[0][0])

    hooks = [body.embed_tokens.register_forward_hook(after("embed")), body.norm.register_forward_hook(after("ln_f"))]
    hooks.append(body.rotary_emb.register_forward_hook(lambda _, __, output: angles.append(output)))
    for i, block in enumerate(body.layers):
        h, attention, mlp = f"h.{i}.", block.self_attn, block.mlp
        modules = {"ln_1": block.input_layernorm, "attn.out": attention, "ln_2": block.post_attention_layernorm} | {
            "mlp.pre": mlp.gate_proj, "mlp.gate": mlp.act_fn, "mlp.up": mlp.up_proj, "mlp.out": mlp.down_proj,
            "resid_post": block,
        }  # fmt: skip
        modules |= {f"attn.{part}": getattr(attention, f"{part}_proj") for part in "qkv"}
        hooks += [module.register_forward_hook(after(h + name)) for name, module in modules.items()]
        given = {"attn.z": attention.o_proj, "mlp.act": mlp.down_proj, "resid_mid": block.post_attention_layernorm}
        hooks += [module.register_forward_pre_hook(before(h + name)) for name, module in given.items()]
    run = model(ids, output_hidden_states=True, output_attentions=True, use_cache=False)
    for hook in hooks:
        hook.remove()
    assert run.logits.dtype == torch.float64
    above = torch.ones(len(tokens), len(tokens), dtype=torch.bool).triu(1)
    for i in range(config.num_hidden_layers):
        h = f"h.{i}.attn."
        q, k, v = (caught[h + part].unflatten(1, (-1, config.head_dim)).transpose(0, 1) for part in "qkv")
        q, k = (x[0] for x in apply_rotary_pos_emb(q[None], k[None], *angles[0]))
        caught |= {h + "q": q, h + "k": k, h + "v": v}
        shared = [x.repeat_interleave(len(q) // len(k), 0) for x in (k, v)]
        scores = (q @ shared[0].transpose(1, 2) * config.head_dim**-0.5).masked_fill(above, -torch.inf)
        caught |= {h + "scores": scores, h + "pattern": scores.softmax(-1)}
        # The values that this script recomputes must be close to transformers', whose softmax is float32.
        torch.testing.assert_close(caught[h + "pattern"], run.attentions[i][0], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close((run.attentions[i][0] @ shared[1]).transpose(0, 1).flatten(1), caught[h + "z"])
    caught["logits"] = run.logits[0]
    return with_greedy(model, tokens, caught, config.max_position_embeddings)
