"""Divides long runs of blanks and long runs of non-blank characters, on which regular-expression engines fail."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

MAX_RUN_CHARACTERS = 400_000  # tiktoken panics at a million blanks; browsers fail at several million letters
_BLANKS = [*range(9, 14), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
_IS_BLANK = np.isin(np.arange(_BLANKS[-1] + 2), _BLANKS)  # the last element is for all characters after the last blank


def parts(text: str, most: int = MAX_RUN_CHARACTERS) -> list[str]:
    """Splits `text` within each run of blanks, and each run of non-blanks, after every `most` characters of the run."""
    if len(text) <= most:
        return [text]
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    changes = np.flatnonzero(np.diff(_IS_BLANK[np.minimum(codes, len(_IS_BLANK) - 1)])) + 1
    edges = np.concatenate(([0], changes, [len(text)]))
    long = np.flatnonzero(np.diff(edges) > most)
    ends = [at for run in long for at in range(int(edges[run]) + most, int(edges[run + 1]), most)]
    return [text[start:end] for start, end in pairwise([0, *ends, len(text)])]
