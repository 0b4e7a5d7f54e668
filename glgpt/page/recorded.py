"""The recorded run of a page: what it shows while weights and shaders come."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from glgpt.errors import GlgptError
from glgpt.inference.model import GPT2
from glgpt.inference.sampling import Sampler
from glgpt.models.spec import PATTERN, in_block
from glgpt.page.machine import recorded_machine
from glgpt.text.tokenizer import StreamDecoder, Tokenizer

SAMPLE = "JULIET:\nO Romeo, Romeo! wherefore art thou Romeo?\n\nROMEO:\n"  # the prompt that a page opens with
SETTINGS: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9, "seed": 1}  # as the page's own defaults
TOKENS = 60
ALTERNATIVES = 8
ATTENTION_TOKENS = 48  # of which attention is kept
WEIGHT_EXPONENT = 0.4  # a byte of attention is 255 * weight^this: the opacity that the page draws a weight with


def recorded_json(model: GPT2) -> dict[str, Any] | None:
    """A prompt, its continuation with alternatives, attention over the first tokens, and pictures of the machine.

    None where the model has no tokenizer, or one that cannot encode the prompt.
    """
    tokenizer = model.tokenizer
    if tokenizer is None:
        return None
    try:
        given = model.encode(SAMPLE)
    except GlgptError:  # a vocabulary without these characters
        return None
    room = model.config.n_positions - len(given)
    if room < 1:
        return None
    ids = [*given, *model.generate_ids(given, min(TOKENS, room), **SETTINGS)]
    patterns = [in_block(i, PATTERN) for i in range(model.config.n_layer)]
    logits, found = model.run_with_cache(ids, patterns)
    sampler = Sampler(**SETTINGS)
    tokens: list[dict[str, Any]] = []
    for at, (id_, text) in enumerate(zip(ids, _texts(tokenizer, ids), strict=True)):
        token: dict[str, Any] = {"id": id_, "text": text, "label": tokenizer.label(id_)}
        if at >= len(given):
            token |= _weighed(tokenizer, logits[at - 1], sampler, id_)
        tokens.append(token)
    kept = min(len(ids), ATTENTION_TOKENS)
    rows, columns = np.tril_indices(kept)
    weights = np.stack([found[name][:, rows, columns] for name in patterns])  # [layers, heads, pairs]
    return {
        "schema": 1,
        "prompt": SAMPLE,
        "given": len(given),
        "tokens": tokens,
        "attention": {
            "tokens": kept,
            "data": base64.b64encode(np.rint(255 * weights**WEIGHT_EXPONENT).astype(np.uint8).tobytes()).decode(),
        },
        "machine": recorded_machine(model, ids, len(given), logits),
    }


def _texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What each token adds to the text: a character appears with the last of its bytes."""
    stream = StreamDecoder(tokenizer)
    return [stream.push(id_) for id_ in ids]


def _weighed(tokenizer: Tokenizer, logits: Any, sampler: Sampler, chosen: int) -> dict[str, Any]:
    """The model's probability of the chosen token, the one it was sampled with, and the likeliest others."""
    p = np.exp(logits.astype(np.float64) - logits.max())
    p /= p.sum()
    drawn = sampler.probabilities(logits)

    def of(id_: int) -> dict[str, Any]:
        return {"id": id_, "p": round(float(p[id_]), 5), "sampled": round(float(drawn[id_]), 5)}

    best = np.argsort(-p, kind="stable")[:ALTERNATIVES].tolist()
    top = [{**of(i), "label": tokenizer.label(i)} for i in best]
    return {**of(chosen), "top": top}
