"""Checks if BPE merges may be applied by the rank of the joined bytes, as tiktoken does."""

from __future__ import annotations

from collections.abc import Mapping


def stray_merge(merges: Mapping[tuple[bytes, bytes], int]) -> tuple[bytes, bytes] | None:
    """Returns the first merge for which the rank of the joined bytes may give another result than the pair's rank.

    Both agree if every token is made once, from earlier ones, and its own bytes encode to it, as after BPE training.
    Returns None if they agree for all merges.
    """
    made = {a + b: rank for (a, b), rank in merges.items()}
    halves = {a + b: (a, b) for a, b in merges}

    def known(part: bytes, rank: int) -> bool:
        return len(part) == 1 or made.get(part, rank) < rank

    def survives(a: bytes, b: bytes, limit: int) -> bool:
        # Undoes the merges of both sides, latest first, and checks if a pair across the middle has an earlier merge.
        while True:
            if merges.get((a, b), limit) < limit:
                return False
            left, right = made.get(a, -1), made.get(b, -1)
            if left == right == -1:
                return True
            if left > right:
                limit, a = left, halves[a][1]
            else:
                limit, b = right + 1, halves[b][0]

    for (a, b), rank in merges.items():
        if made[a + b] != rank or not (known(a, rank) and known(b, rank) and survives(a, b, rank)):
            return a, b
    return None
