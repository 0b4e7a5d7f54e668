"""Inspects how a tokenizer splits a text: bytes per token, and the longest and the rarest tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from glgpt.errors import GlgptError
from glgpt.text.files import Text
from glgpt.text.tokenizer import Tokenizer

MIN_MERGE_RANK = 256  # first rank of a merge; the lower ranks are those of the bytes


@dataclass(frozen=True)
class Cut:
    """Statistics of a tokenized text.

    `longest` and `rarest` list tokens that merges made, each with its id, label, number of bytes, and count in the
    text.
    """

    name: str
    vocab_size: int
    tokens: int
    bytes: int
    bytes_per_token: float
    longest: list[dict[str, object]]
    rarest: list[dict[str, object]]
    beginning: list[str]  # labels of the text's first tokens, up to 40


def cut_of(
    name: str, tokenizer: Tokenizer, text: Text, many: int = 12, progress: Callable[[int, int], None] | None = None
) -> Cut:
    """Tokenizes a text and counts its tokens; `many` is the maximum number of tokens in `longest` and in `rarest`.

    Raises GlgptError if the vocabulary lacks a byte of the text, or the text has no tokens.
    """
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    beginning: list[str] = []
    for piece, done in text.pieces(tokenizer.special):
        ids = np.asarray(tokenizer.encode(piece), np.int64)
        counts += np.bincount(ids, minlength=tokenizer.vocab_size)
        beginning += [tokenizer.label(int(i)) for i in ids[: 40 - len(beginning)]]
        if progress:
            progress(done, text.size)
    total = int(counts.sum())
    if not total:
        raise GlgptError("the tokenizer makes no tokens of the text")
    made = [token for _, token in tokenizer.ranks[MIN_MERGE_RANK:] if token >= 0]
    longest = sorted(made, key=lambda i: (-len(tokenizer.token_bytes(i)), i))[:many]
    rarest = sorted(made, key=lambda i: (int(counts[i]), -i))[:many]

    def shown(ids: list[int]) -> list[dict[str, object]]:
        return [
            {
                "id": i,
                "label": tokenizer.label(i),
                "bytes": len(tokenizer.token_bytes(i)),
                "count": int(counts[i]),
            }
            for i in ids
        ]

    return Cut(
        name, tokenizer.vocab_size, total, text.size, text.size / total, shown(longest), shown(rarest), beginning
    )
