"""Records a generated text and its activations. A page shows the recording while weights and shaders load."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from glgpt.inference.arguments.sampling_options import SamplingKeywords, SamplingOptions
from glgpt.inference.model import LanguageModel
from glgpt.inference.sampling import Sampler
from glgpt.models.activations import EMBED, LOGITS, PATTERN, SCORES, in_block, part_of
from glgpt.models.views import stages
from glgpt.page.documents.recorded import Candidate, Recorded, RecordedMachine, RecordedToken
from glgpt.page.prompts import Prompts
from glgpt.plots.cells import REACH, folded
from glgpt.program.formats import Floats
from glgpt.text.tokenizer import StreamDecoder, Tokenizer

ALTERNATIVES = 8  # likely tokens stored for each generated token
ATTENTION_TOKENS = 48  # tokens whose attention is stored
WEIGHT_EXPONENT = 0.4  # the page draws an attention weight with opacity weight^0.4, which is stored as 255 * weight^0.4
# A cell is the part of a recorded picture that shows one stage of a block: its width and height in texels.
CELL = (24, 8)
ASPECT = 5.0  # approximate width of a cell on the page, divided by its height
BLOCKS_AT_ONCE = 12  # blocks whose activations are in memory at once
PICTURES = 6  # maximum number of recorded pictures


def recorded_json(model: LanguageModel, prompts: Prompts) -> Recorded | None:
    """Returns the content of recorded.json; None without a prompt, or if the model generates no token after the prompt.

    The content is the first prompt, its continuation with alternatives, the attention of the first tokens, and pictures
    of the machine (the page's drawing of the whole model).
    """
    given, tokenizer = prompts.opening(), prompts.tokenizer
    if given is None or tokenizer is None:
        return None
    room = model.config.n_positions - len(given)
    if room < 1:
        return None
    opening = prompts.continuation()
    settings = cast("SamplingKeywords", {**prompts.sampling, "seed": opening.seed})
    ids = [*given, *model.generate_ids(given, min(opening.tokens, room), **settings)]
    if len(ids) == len(given):
        return None
    patterns = [in_block(i, PATTERN) for i in range(model.config.n_layer)]
    logits, found = model.run_with_cache(ids, patterns)
    sampler = Sampler(SamplingOptions(**settings))
    tokens: list[RecordedToken] = []
    for at, (id_, text) in enumerate(zip(ids, _texts(tokenizer, ids), strict=True)):
        token: RecordedToken = {"id": id_, "text": text, "label": tokenizer.label(id_)}
        if at >= len(given):
            token["p"], token["sampled"], token["top"] = _weighed(tokenizer, logits[at - 1], sampler, id_)
        tokens.append(token)
    kept = min(len(ids), ATTENTION_TOKENS)
    rows, columns = np.tril_indices(kept)
    weights = np.stack([found[name][:, rows, columns] for name in patterns])  # [layers, heads, pairs]
    return {
        "schema": 1,
        "prompt": prompts.prompts[0].text,
        "seed": opening.seed,
        "given": len(given),
        "tokens": tokens,
        "attention": {
            "tokens": kept,
            "data": base64.b64encode(np.rint(255 * weights**WEIGHT_EXPONENT).astype(np.uint8).tobytes()).decode(),
        },
        "machine": recorded_machine(model, ids, len(given), logits),
    }


def _texts(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Returns the text of each token. If several tokens form one character, it is in the text of the last of them."""
    stream = StreamDecoder(tokenizer)
    return [stream.push(id_) for id_ in ids]


def _weighed(tokenizer: Tokenizer, logits: Any, sampler: Sampler, chosen: int) -> tuple[float, float, list[Candidate]]:
    """Returns the chosen token's probabilities before and after sampling settings, and the most likely tokens."""
    p = np.exp(logits.astype(np.float64) - logits.max())
    p /= p.sum()
    drawn = sampler.probabilities(logits)

    def of(id_: int) -> Candidate:
        p_id, drawn_id = round(float(p[id_]), 5), round(float(drawn[id_]), 5)
        return {"id": id_, "p": p_id, "sampled": drawn_id, "label": tokenizer.label(id_)}

    best = np.argsort(-p, kind="stable")[:ALTERNATIVES].tolist()
    found = of(chosen)
    return found["p"], found["sampled"], [of(i) for i in best]


def rows_of(found: Mapping[str, Floats], names: Sequence[str], t: int) -> Floats:
    """Returns the values of the activations `names` at token `t`, of shape `[rows, columns]`.

    An activation of heads has a row for each head. A row of attention scores has only the keys that are not masked.
    """

    def of(name: str) -> Floats:
        values = found[name]
        if part_of(name) == SCORES:
            return values[:, t, ~np.isneginf(values[0, t])]
        return values[:, t] if values.ndim == 3 else values[t : t + 1]

    return np.concatenate([of(name) for name in names])


def recorded_machine(model: LanguageModel, ids: Sequence[int], given: int, logits: Floats) -> RecordedMachine:
    """Returns up to `PICTURES` pictures of the machine, each for one of the generated tokens (index `given` and later).

    The tokens of the pictures are spread evenly. `logits` has a row for each of `ids`. `RecordedMachine` describes the
    format of the pictures.
    """
    config = model.config
    at = sorted({round(t) for t in np.linspace(given, len(ids) - 1, PICTURES)})
    wide, high = CELL[0], CELL[1] * len(stages(config, 0))
    pictures = np.empty((len(at), high, wide * (config.n_layer + 2)), np.uint8)

    def put(column: int, top: int, rows: int, found: Mapping[str, Floats], names: Sequence[str]) -> None:
        for picture, t in zip(pictures, at, strict=True):
            place = picture[top : top + rows, column * wide : (column + 1) * wide]
            place[:] = _bytes(rows_of(found, names, t - 1), wide, rows)  # at position t - 1, the model predicts token t

    for first in range(0, config.n_layer, BLOCKS_AT_ONCE):
        blocks = {i: stages(config, i) for i in range(first, min(first + BLOCKS_AT_ONCE, config.n_layer))}
        wanted = [n for cells in blocks.values() for stage in cells for n in stage.names]
        _, found = model.run_with_cache(ids, [EMBED, *wanted])
        for block, cells in blocks.items():
            for line, stage in enumerate(cells):
                put(1 + block, line * CELL[1], CELL[1], found, stage.names)
    put(0, 0, high, found, [EMBED])
    put(config.n_layer + 1, 0, high, {LOGITS: logits}, [LOGITS])
    return {
        "cell": list(CELL),
        "at": at,
        "pictures": [base64.b64encode(picture.tobytes()).decode() for picture in pictures],
    }


def _bytes(values: Floats, wide: int, high: int) -> NDArray[np.uint8]:
    """Resizes a matrix to `high` x `wide` by nearest neighbour.

    Returns bytes: 127 for zero, 254 for the upper limit of the colour scale, and 0 for its lower limit. Values beyond
    the limits are clipped.
    """
    values = folded(values, ASPECT * CELL[1] / high)
    rows, columns = (np.arange(n) * size // n for n, size in ((high, len(values)), (wide, values.shape[1])))
    far = max(REACH * float(np.abs(values).mean()), 1e-30)
    shown: NDArray[np.uint8] = np.rint(127 + 127 * np.clip(values[np.ix_(rows, columns)] / far, -1, 1)).astype(np.uint8)
    return shown
