"""Holds the captions and explanations of parameters, activations, states and passes that the page displays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from glgpt.models.spec import ModelConfig


class Name(NamedTuple):
    """A short caption and an explanation of one line; either may be empty."""

    title: str = ""
    about: str = ""


LOGITS_FROM = "turns the last norm into logits"

# Names that do not depend on the family, although some families lack a few; {} stands for a block's number.
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
POST_NORM = {
    "h.{}.attn.projected": Name("mix out", "the output of attention before its norm"),
    "h.{}.mlp.projected": Name("MLP out", "the output of the MLP before its norm"),
}
PARALLEL = {"h.{}.ln_2.row": Name("norm", "the block's input times the gain of the MLP's norm")}
QK_NORM = {
    "h.{}.attn.q.scales": Name("scale Q", "the factors that normalise the queries"),
    "h.{}.attn.k.scales": Name("scale K", "the factors that normalise the keys"),
}
ROTARY = {
    "h.{}.attn.q": Name("Q", "queries, rotated by position: what each token looks for"),
    "h.{}.attn.k": Name("K", "keys, rotated by position: what each token can be found by"),
    "h.{}.attn.q.product": Name("to Q", "queries before they are rotated by position"),
    "h.{}.attn.k.product": Name("to K", "keys before they are rotated by position"),
    "h.{}.attn.v.product": Name("to V", "values before they are split into heads"),
}
GATED = {
    "h.{}.mlp.pre": Name("gate in", "the MLP's gate before its activation"),
    "h.{}.mlp.gate": Name("gate", "the MLP's gate after its activation: how much of each hidden value passes"),
    "h.{}.mlp.up": Name("up", "the hidden values that the gate scales"),
    "h.{}.mlp.act": Name("MLP", "the hidden values times the gate: most of them near zero"),
}

NORMED = "the normalised stream"
# Linear layers by role: (caption of the product, input of the layer, what the weight does, what the bias is added to).
LINEARS = {
    "qkv": ("to QKV", NORMED, "turns the normalised stream into queries, keys and values", "queries, keys and values"),
    "q": ("to Q", NORMED, "turns the normalised stream into queries", "queries"),
    "k": ("to K", NORMED, "turns the normalised stream into keys", "keys"),
    "v": ("to V", NORMED, "turns the normalised stream into values", "values"),
    "o": ("mix out", "the heads' mix", "turns what the heads mixed into what attention adds to the stream",
          "what attention adds to the stream"),
    "gate": ("to gate", NORMED, "turns the normalised stream into the MLP's gate", "the gate before its activation"),
    "up": ("MLP in", NORMED, "turns the normalised stream into the MLP's hidden layer",
           "the hidden layer before its activation"),
    "down": ("MLP out", "the hidden layer", "turns the hidden layer into what the MLP adds to the stream",
             "what the MLP adds to the stream"),
}  # fmt: skip
GATED_UP = ("to up", NORMED, "turns the normalised stream into the hidden values that the gate scales", "those values")
NORMS = {
    "norm_1": "the norm before attention",
    "q_norm": "the norm of queries",
    "k_norm": "the norm of keys",
    "post_1": "the norm of attention's output",
    "post_2": "the norm of the MLP's output",
    "norm_2": "the norm before the MLP",
    "norm": "the norm after the last block",
}
FOLDS = {
    "folded": Name("fold", "multiplies a norm's gain and bias into the following product, once after loading"),
    "gain_w": Name("", "the preceding norm's gain times this weight, so that one pass applies both"),
    "bias_w": Name("", "the preceding norm's bias times this weight, so that one pass applies both"),
}


def all_names(config: ModelConfig) -> dict[str, Name]:
    """Returns captions and explanations for a model, by name; in a name, {} stands for a block's number."""
    found = dict(SHARED) | (GATED if config.gated else {})
    if config.positions == "rotary":
        found |= ROTARY
    else:
        found["embed"] = Name("embed", "each token's vector plus its position's: where the residual stream begins")
        found[f"{config.tensor('positions')}.weight"] = Name("", "a vector for each position")
    found |= PARALLEL if config.parallel else {}
    found |= (POST_NORM if config.norm_after else {}) | (QK_NORM if config.qk_norm else {})
    found["h.{}.attn.qkv"] = Name("QKV", "queries, keys and values, split into heads")
    found[config.embedding] = Name("", "a vector for each token")
    for role, about in NORMS.items():
        if role in config.tensors:
            found[f"{config.tensor(role)}.weight"] = Name("", f"gain of {about}")
            found[f"{config.tensor(role)}.bias"] = Name("", f"bias of {about}")
    for role, (title, of, weight, bias) in (LINEARS | ({"up": GATED_UP} if config.gated else {})).items():
        if role in config.tensors:
            name = config.tensor(role)
            short = name.removeprefix(config.block_prefix)
            found[name] = Name(title, f"{of} times {short}.weight")
            found[f"{name}.weight"], found[f"{name}.bias"] = Name("", weight), Name("", f"added to {bias}")
            found |= {f"{name}.{fold}": text for fold, text in FOLDS.items()}
    heads = {f"{name}.{fold}": text for name in (config.embedding, config.head) for fold, text in FOLDS.items()}
    return found | {config.head: SHARED["lm_head.weight"]} | heads
