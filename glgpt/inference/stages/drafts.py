"""Drafts the next tokens of a text from the text itself, for speculative decoding (prompt look-up)."""

from __future__ import annotations

from collections.abc import Sequence

MAX_SUFFIX, MIN_SUFFIX = 6, 2  # tokens of the text's end to search for earlier in it


def draft(ids: Sequence[int], most: int) -> list[int]:
    """Returns up to `most` ids that followed the latest earlier occurrence of the text's last tokens, or [].

    Longer endings are tried first, since what followed them is likelier to follow again.
    """
    text = list(ids)
    for n in range(min(MAX_SUFFIX, len(text) - 1), MIN_SUFFIX - 1, -1):
        ending = text[-n:]
        for at in range(len(text) - n - 1, -1, -1):
            if text[at : at + n] == ending:
                return text[at + n : at + n + most]
    return []
