"""Whether a list of BPE merges may be applied by the rank of the joined bytes, as tiktoken does."""

from __future__ import annotations

from collections.abc import Mapping


def stray_merge(merges: Mapping[tuple[bytes, bytes], int]) -> tuple[bytes, bytes] | None:
    """The first merge for which merging by the joined bytes' rank, tiktoken's way, may differ from the pair's rank.

    They agree when every token is made once, from earlier ones, and is what its own bytes encode to, as training does.
    """
    made = {a + b: rank for (a, b), rank in merges.items()}
    halves = {a + b: (a, b) for a, b in merges}

    def known(part: bytes, rank: int) -> bool:
        return len(part) == 1 or made.get(part, rank) < rank

    def survives(a: bytes, b: bytes, limit: int) -> bool:
        # Undoes both sides' merges, latest first: before each, would a pair across the middle have come earlier?
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
