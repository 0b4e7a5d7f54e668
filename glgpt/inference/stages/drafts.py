"""Guesses how a text continues from the text itself, for speculative decoding (prompt lookup)."""

from __future__ import annotations

from collections.abc import Sequence

MAX_SUFFIX, MIN_SUFFIX = 6, 2  # tokens of the text's end that are searched for earlier in it


class PromptLookup:
    """Finds what followed the latest earlier occurrence of a text's last tokens; `ids` grow with `extend`."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # position after the latest occurrence of these tokens

    def extend(self, ids: Sequence[int]) -> None:
        """Appends tokens."""
        for token in ids:
            end = len(self.ids)
            for n in range(MIN_SUFFIX, min(MAX_SUFFIX, end) + 1):
                self._after[tuple(self.ids[end - n :])] = end
            self.ids.append(token)

    def draft(self, most: int) -> list[int]:
        """Returns up to `most` guessed tokens, or [].

        Longer endings are tried first, since what followed them is likelier to follow again.
        """
        for n in range(min(MAX_SUFFIX, len(self.ids)), MIN_SUFFIX - 1, -1):
            at = self._after.get(tuple(self.ids[-n:]))
            if at is not None:
                return self.ids[at : at + most]
        return []
