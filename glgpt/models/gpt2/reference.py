"""Collects the activations of transformers' GPT-2 by hooks on its modules."""

from __future__ import annotations

from functools import partial
from typing import Any

from glgpt.models.reference import Hooks


def activations(network: Any, ids: list[int]) -> dict[str, Any]:
    """Returns every activation of a GPT2LMHeadModel (eager attention), in natural shapes, float64."""
    body, heads = network.transformer, network.config.n_head
    hooks = Hooks()
    hooks.output("embed", body.drop)
    hooks.output("ln_f", body.ln_f)
    for i, block in enumerate(body.h):
        h = f"h.{i}."
        hooks.output(h + "ln_1", block.ln_1)
        for n, which in enumerate("qkv"):
            hooks.output(h + f"attn.{which}", block.attn.c_attn, partial(_heads, n=n, count=heads))
        hooks.input(h + "attn.z", block.attn.c_proj)
        hooks.output(h + "attn.out", block.attn.c_proj)
        hooks.input(h + "resid_mid", block.ln_2)
        hooks.output(h + "ln_2", block.ln_2)
        hooks.output(h + "mlp.pre", block.mlp.c_fc)
        hooks.input(h + "mlp.act", block.mlp.c_proj)
        hooks.output(h + "mlp.out", block.mlp.c_proj)
        hooks.output(h + "resid_post", block)
    return hooks.run(network, ids, [block.attn.scaling for block in body.h])


def _heads(qkv: Any, n: int, count: int) -> Any:
    return qkv.chunk(3, dim=-1)[n].unflatten(-1, (count, -1)).transpose(0, 1)
