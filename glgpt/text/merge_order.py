"""Checks if BPE merges may be applied by the rank of the joined bytes, as tiktoken does."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

_BYTES = 256  # numbers of the tokens of one byte; the tokens that merges make follow


def stray_merge(merges: Collection[tuple[bytes, bytes]]) -> tuple[bytes, bytes] | None:
    """Returns the first merge for which the rank of the joined bytes may give another result than the pair's rank.

    Merges are different pairs in the order of their ranks. Both agree if every token is made once, from earlier ones,
    and its own bytes encode to it, as after BPE training. Returns None if they agree for all merges.
    """
    pairs, count = list(merges), len(merges)
    wholes = [a + b for a, b in pairs]
    number = dict(zip(wholes, range(_BYTES, _BYTES + count), strict=True))
    number |= {bytes([byte]): byte for byte in range(_BYTES)}
    unknown = _BYTES + count
    left, right, made = (
        np.fromiter((number.get(token, unknown) for token in tokens), np.int64, count)
        for tokens in ((a for a, _ in pairs), (b for _, b in pairs), wholes)
    )
    own = np.arange(_BYTES, _BYTES + count)
    stray = (made != own) | (left >= own) | (right >= own)
    end = int(stray.argmax()) if stray.any() else count  # merges before it join tokens that earlier ones made
    first = _first_crossed(left[:end], right[:end])
    return pairs[first] if first < count else None


def _first_crossed(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Returns the index of the first merge across whose middle an earlier one joins bytes, or the number of merges.

    Undoes the merges of both sides of all merges at once, latest first. `left` and `right` are numbers of tokens.
    """
    count = first = len(left)
    codes = left * (_BYTES + count) + right
    order = np.argsort(codes)
    codes = codes[order]
    index = np.arange(count)
    a, b, limit = left, right, _BYTES + index  # only merges of lower numbers than the limit would come first
    while len(index):
        code = a * (_BYTES + count) + b
        at = np.minimum(np.searchsorted(codes, code), count - 1)
        crossed = (codes[at] == code) & (_BYTES + order[at] < limit)
        first = min(first, int(index[crossed].min(initial=count)))
        others = ~crossed & (np.maximum(a, b) >= _BYTES)  # a token of one byte cannot be undone
        index, a, b = index[others], a[others], b[others]
        from_left = a > b
        limit = np.where(from_left, a, b + 1)
        undone = np.where(from_left, a, b) - _BYTES
        a, b = np.where(from_left, right[undone], a), np.where(from_left, b, left[undone])
    return first
