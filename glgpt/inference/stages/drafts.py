"""Guesses the next tokens of a text from its earlier tokens, for speculative decoding (prompt lookup)."""

from __future__ import annotations

from collections.abc import Sequence

MAX_SUFFIX, MIN_SUFFIX = 6, 2  # maximum and minimum number of last tokens that are searched for earlier in the text


class PromptLookup:
    """Finds the tokens that followed the latest earlier occurrence of a text's last tokens; `ids` is the text."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # position after the latest occurrence of these tokens

    def extend(self, ids: Sequence[int]) -> None:
        """Appends tokens to the text."""
        for token in ids:
            end = len(self.ids)
            for n in range(MIN_SUFFIX, min(MAX_SUFFIX, end) + 1):
                self._after[tuple(self.ids[end - n :])] = end
            self.ids.append(token)

    def draft(self, most: int) -> list[int]:
        """Returns up to `most` guessed tokens; [] if the text's last tokens have not occurred before.

        Longer endings of the text are tried first, because the tokens that followed them earlier are likelier to follow
        again.
        """
        for n in range(min(MAX_SUFFIX, len(self.ids)), MIN_SUFFIX - 1, -1):
            at = self._after.get(tuple(self.ids[-n:]))
            if at is not None:
                return self.ids[at : at + most]
        return []
