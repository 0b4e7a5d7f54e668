"""Checks the token ids in the files of a tokenizer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from glgpt.errors import FileError, quoted

MAX_IDS = 1 << 24  # maximum ids of a vocabulary
MAX_MERGES = 1 << 20
MAX_SPECIAL_TOKENS = 10_000  # maximum tokens that are never split; every text is searched for all of them


def checked_ids(vocab: Any, path: Path) -> dict[str, int]:
    """Returns `vocab` if it maps tokens to distinct ids. Raises FileError, naming the file, for anything else."""
    name = quoted(path, 300)
    if not isinstance(vocab, dict) or any(type(t) is not str or type(i) is not int or i < 0 for t, i in vocab.items()):
        raise FileError(f"{name} does not map tokens to ids")
    if max(vocab.values(), default=0) >= MAX_IDS:
        raise FileError(f"{name} holds an id that is too large; ids must be below {MAX_IDS:,}")
    if len(set(vocab.values())) != len(vocab):
        raise FileError(f"{name} gives two tokens the same id")
    return vocab


def added_ids(vocab: Mapping[str, int], contents: Iterable[str]) -> dict[str, int]:
    """Returns the id of each added token: its id in `vocab`, or, if it is not there, the next id after the vocabulary.

    The ids in the file are ignored, because the `tokenizers` library also renumbers added tokens when it loads them.
    """
    following = itertools.count(len(vocab))
    return {
        content: vocab[content] if content in vocab else next(following)
        for content in filter(None, dict.fromkeys(contents))
    }
