"""GPT-2's own captions and explanations, by name; {} stands for a block's number."""

from __future__ import annotations

from glgpt.models.names import Name

_GAIN = Name("", "the preceding norm's gain times this weight, so that one pass applies both")
_BIAS = Name("", "the preceding norm's bias times this weight, so that one pass applies both")
_FOLD = Name("fold", "multiplies a norm's gain and bias into the following product, once after loading")

NAMES = {
    "embed": Name("embed", "each token's vector plus its position's: where the residual stream begins"),
    "wte.weight": Name("", "a vector for each token"),
    "wpe.weight": Name("", "a vector for each position"),
    "h.{}.ln_1.weight": Name("", "gain of the norm before attention"),
    "h.{}.ln_1.bias": Name("", "bias of the norm before attention"),
    "h.{}.attn.c_attn": Name("to QKV", "the normalised stream times attn.c_attn.weight"),
    "h.{}.attn.c_attn.weight": Name("", "turns the normalised stream into queries, keys and values"),
    "h.{}.attn.c_attn.bias": Name("", "added to queries, keys and values"),
    "h.{}.attn.c_attn.folded": _FOLD,
    "h.{}.attn.c_attn.gain_w": _GAIN,
    "h.{}.attn.c_attn.bias_w": _BIAS,
    "h.{}.attn.qkv": Name("QKV", "queries, keys and values, split into heads"),
    "h.{}.attn.c_proj": Name("mix out", "the heads' mix times attn.c_proj.weight"),
    "h.{}.attn.c_proj.weight": Name("", "turns what the heads mixed into what attention adds to the stream"),
    "h.{}.attn.c_proj.bias": Name("", "added to what attention adds to the stream"),
    "h.{}.ln_2.weight": Name("", "gain of the norm before the MLP"),
    "h.{}.ln_2.bias": Name("", "bias of the norm before the MLP"),
    "h.{}.mlp.c_fc": Name("MLP in", "the normalised stream times mlp.c_fc.weight"),
    "h.{}.mlp.c_fc.weight": Name("", "turns the normalised stream into the MLP's hidden layer"),
    "h.{}.mlp.c_fc.bias": Name("", "added to the hidden layer before its activation"),
    "h.{}.mlp.c_fc.folded": _FOLD,
    "h.{}.mlp.c_fc.gain_w": _GAIN,
    "h.{}.mlp.c_fc.bias_w": _BIAS,
    "h.{}.mlp.c_proj": Name("MLP out", "the hidden layer times mlp.c_proj.weight"),
    "h.{}.mlp.c_proj.weight": Name("", "turns the hidden layer into what the MLP adds to the stream"),
    "h.{}.mlp.c_proj.bias": Name("", "added to what the MLP adds to the stream"),
    "ln_f.weight": Name("", "gain of the norm after the last block"),
    "ln_f.bias": Name("", "bias of the norm after the last block"),
    "wte.weight.folded": _FOLD,
    "wte.weight.gain_w": _GAIN,
    "wte.weight.bias_w": _BIAS,
    "lm_head.weight.folded": _FOLD,
    "lm_head.weight.gain_w": _GAIN,
    "lm_head.weight.bias_w": _BIAS,
}
