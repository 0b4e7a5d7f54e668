"""Guessing how a text continues from the text itself, for speculative decoding (prompt look-up)."""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 6, 2  # tokens of the text's end that are looked for earlier in it


def draft(ids: Sequence[int], most: int) -> list[int]:
    """What followed the latest earlier occurrence of the text's last tokens, up to `most` ids; none without one.

    Longer endings are looked for first, since what follows them is likelier to follow again.
    """
    text = list(ids)
    for n in range(min(LONGEST, len(text) - 1), SHORTEST - 1, -1):
        ending = text[-n:]
        for at in range(len(text) - n - 1, -1, -1):
            if text[at : at + n] == ending:
                return text[at + n : at + n + most]
    return []
