"""Captions and explanations of parameters, activations and passes, which the views display."""

from __future__ import annotations

from typing import NamedTuple


class Name(NamedTuple):
    """A caption of a word or two and an explanation of one line; either may be empty."""

    title: str = ""
    about: str = ""


LOGITS_FROM = "turns the last norm into logits"

# Names of every family; {} stands for a block's number. Families add their own.
SHARED = {
    "embed": Name("embed", "each token's vector: where the residual stream begins"),
    "h.{}.ln_1": Name("norm", "the residual stream, normalised: the input of attention"),
    "h.{}.attn.q": Name("Q", "queries: what each token looks for"),
    "h.{}.attn.k": Name("K", "keys: what each token can be found by"),
    "h.{}.attn.v": Name("V", "values: what each token passes on"),
    "h.{}.attn.scores": Name("scores", "how well each query matches each key before it"),
    "h.{}.attn.pattern": Name("weights", "softmax of the scores: how much each token takes from each"),
    "h.{}.attn.z": Name("mix", "the values, summed by those weights, head by head"),
    "h.{}.attn": Name("attention", "the block's first part, which adds attn.out to the residual stream"),
    "h.{}.mlp": Name("the MLP", "the block's second part, which adds mlp.out to the residual stream"),
    "h.{}.attn.out": Name("mix out", "what attention adds to the residual stream"),
    "h.{}.resid_mid": Name("residual", "the residual stream after attention"),
    "h.{}.ln_2": Name("norm", "the residual stream, normalised: the input of the MLP"),
    "h.{}.mlp.pre": Name("MLP in", "the MLP's hidden layer before its activation"),
    "h.{}.mlp.act": Name("MLP", "the MLP's hidden layer after its activation: most of it near zero"),
    "h.{}.mlp.out": Name("MLP out", "what the MLP adds to the residual stream"),
    "h.{}.resid_post": Name("residual", "the residual stream after the block"),
    "ln_f": Name("norm", "the residual stream after the last block, normalised"),
    "logits": Name("logits", "the score of every token as the next one"),
    "token": Name("token", "the token chosen last: its id and its logit"),
    "lm_head.weight": Name("", LOGITS_FROM),
}
