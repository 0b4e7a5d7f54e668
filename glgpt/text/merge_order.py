"""Checks whether BPE merges may be applied by the rank of the joined bytes, as tiktoken applies them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

_BYTES = 256  # number of one-byte tokens, which come first; the tokens that merges make follow


def stray_merge(merges: Collection[tuple[bytes, bytes]]) -> tuple[bytes, bytes] | None:
    """Returns the first merge because of which tiktoken may give another result than BPE; None if there is none.

    `merges` are distinct pairs of tokens in the order of their ranks. BPE first applies the merge whose pair has the
    lowest rank; tiktoken applies the one whose joined bytes have the lowest rank. The results agree if every token is
    made by exactly one merge, this merge joins earlier tokens, and encoding the token's bytes gives the token itself.
    The merges of BPE training meet these conditions.
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
    # Merges before `end` join only single bytes and tokens that earlier merges made.
    end = int(stray.argmax()) if stray.any() else count
    first = _first_crossed(left[:end], right[:end])
    return pairs[first] if first < count else None


def _first_crossed(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Returns the index of the first merge whose middle an earlier merge crosses, or else the number of merges.

    `left` and `right` are the numbers of the two tokens that each merge joins; its middle is between these two tokens.
    An earlier merge crosses the middle if it joins the last bytes of the left token to the first bytes of the right
    token. To find such bytes, the function undoes the merges that made the tokens on both sides of the middle, the
    latest first. It does so for all merges at once.
    """
    count = first = len(left)
    codes = left * (_BYTES + count) + right
    order = np.argsort(codes)
    codes = codes[order]
    index = np.arange(count)
    a, b, limit = left, right, _BYTES + index  # only merges with numbers below the limit are applied earlier
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
