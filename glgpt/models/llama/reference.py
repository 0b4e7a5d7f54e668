"""Collects the activations of transformers' Llama by hooks on its modules."""

from __future__ import annotations

from typing import Any

from glgpt.models.reference import Hooks


def activations(network: Any, ids: list[int]) -> dict[str, Any]:
    """Returns every activation of a LlamaForCausalLM (eager attention), in natural shapes, float64.

    Queries and keys are those after rotation: transformers' own function rotates the outputs of the modules.
    """
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    body, config, hooks = network.model, network.config, Hooks()
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
    hooks.output("embed", body.embed_tokens)
    hooks.output("ln_f", body.norm)
    angles: list[Any] = []
    handle = body.rotary_emb.register_forward_hook(lambda _, __, output: angles.append(output))
    for i, block in enumerate(body.layers):
        h = f"h.{i}."
        hooks.output(h + "ln_1", block.input_layernorm)
        for part, count in heads.items():
            hooks.output(h + f"attn.{part}", getattr(block.self_attn, f"{part}_proj"), _split(count))
        hooks.input(h + "attn.z", block.self_attn.o_proj)
        hooks.output(h + "attn.out", block.self_attn.o_proj)
        hooks.input(h + "resid_mid", block.post_attention_layernorm)
        hooks.output(h + "ln_2", block.post_attention_layernorm)
        hooks.output(h + "mlp.pre", block.mlp.gate_proj)
        hooks.output(h + "mlp.gate", block.mlp.act_fn)
        hooks.output(h + "mlp.up", block.mlp.up_proj)
        hooks.input(h + "mlp.act", block.mlp.down_proj)
        hooks.output(h + "mlp.out", block.mlp.down_proj)
        hooks.output(h + "resid_post", block)

    def rotated(found: dict[str, Any]) -> dict[str, Any]:
        for i in range(len(body.layers)):
            names = [f"h.{i}.attn.{part}" for part in "qk"]
            rotated = apply_rotary_pos_emb(*(found[name][None] for name in names), *angles[0])
            found |= {name: value[0] for name, value in zip(names, rotated, strict=True)}
        return found

    try:
        return hooks.run(network, ids, [block.self_attn.scaling for block in body.layers], rotated)
    finally:
        handle.remove()


def _split(count: int) -> Any:
    return lambda rows: rows.unflatten(-1, (count, -1)).transpose(0, 1)
