"""Llama's own captions and explanations, by name; {} stands for a block's number."""

from __future__ import annotations

from glgpt.models.names import Name

NAMES = {
    "embed_tokens.weight": Name("", "a vector for each token"),
    "layers.{}.input_layernorm.weight": Name("", "gain of the norm before attention"),
    "layers.{}.self_attn.q_proj": Name("to Q", "the normalised stream times self_attn.q_proj.weight"),
    "layers.{}.self_attn.q_proj.weight": Name("", "turns the normalised stream into queries"),
    "layers.{}.self_attn.k_proj": Name("to K", "the normalised stream times self_attn.k_proj.weight"),
    "layers.{}.self_attn.k_proj.weight": Name("", "turns the normalised stream into keys"),
    "layers.{}.self_attn.v_proj": Name("to V", "the normalised stream times self_attn.v_proj.weight"),
    "layers.{}.self_attn.v_proj.weight": Name("", "turns the normalised stream into values"),
    "h.{}.attn.q": Name("Q", "queries, rotated by position: what each token looks for"),
    "h.{}.attn.k": Name("K", "keys, rotated by position: what each token can be found by"),
    "h.{}.attn.q.product": Name("to Q", "queries before they are rotated by position"),
    "h.{}.attn.k.product": Name("to K", "keys before they are rotated by position"),
    "h.{}.attn.v.product": Name("to V", "values before they are split into heads"),
    "layers.{}.self_attn.o_proj": Name("mix out", "the heads' mix times self_attn.o_proj.weight"),
    "layers.{}.self_attn.o_proj.weight": Name("", "turns what the heads mixed into what attention adds to the stream"),
    "layers.{}.post_attention_layernorm.weight": Name("", "gain of the norm before the MLP"),
    "layers.{}.mlp.gate_proj": Name("to gate", "the normalised stream times mlp.gate_proj.weight"),
    "layers.{}.mlp.gate_proj.weight": Name("", "turns the normalised stream into the MLP's gate"),
    "layers.{}.mlp.up_proj": Name("to up", "the normalised stream times mlp.up_proj.weight"),
    "layers.{}.mlp.up_proj.weight": Name("", "turns the normalised stream into the hidden values that the gate scales"),
    "h.{}.mlp.pre": Name("gate in", "the MLP's gate before its activation"),
    "h.{}.mlp.gate": Name("gate", "the MLP's gate after its activation: how much of each hidden value passes"),
    "h.{}.mlp.up": Name("up", "the hidden values that the gate scales"),
    "h.{}.mlp.act": Name("MLP", "the hidden values times the gate: most of them near zero"),
    "layers.{}.mlp.down_proj": Name("MLP out", "the MLP's hidden layer times mlp.down_proj.weight"),
    "layers.{}.mlp.down_proj.weight": Name("", "turns the MLP's hidden layer into what it adds to the stream"),
    "norm.weight": Name("", "gain of the norm after the last block"),
}
