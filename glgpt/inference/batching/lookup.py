"""Decides how many tokens of a text to guess, and measures whether checking guesses pays."""

from __future__ import annotations

from glgpt import ops
from glgpt.inference.stages.drafts import PromptLookup

FIRST_GUESSES = 3  # so that the first checked step has four rows
FIRST_PAUSE, MAX_PAUSE = 16, 256  # tokens without guesses after some that did not pay; doubled each time
WEIGHT = 0.3  # of the latest measurement in an average


class Speculation:
    """Decides how many tokens to guess, from the measured time of steps with and without guesses.

    A step with guesses computes several rows of the text at once, and gives the right guesses and one token more.
    Guessing pauses if a token takes longer that way.
    """

    def __init__(self) -> None:
        self.lookup = PromptLookup()
        self._plain = self._checked = self._gained = 0.0  # averages: seconds of steps, tokens of a checked step
        self._most, self._pause, self._left = FIRST_GUESSES, FIRST_PAUSE, 0

    def guesses(self, most: int) -> list[int]:
        """Returns up to `most` guesses; none while they do not pay, or before a step without guesses was measured."""
        if self._left or not self._plain:
            self._left = max(0, self._left - 1)
            return []
        return self.lookup.draft(min(most, self._most))

    def plain_step(self, seconds: float) -> None:
        """Adds the time of a step without guesses."""
        self._plain = _average(self._plain, seconds)

    def checked_step(self, seconds: float, guessed: int, accepted: int) -> None:
        """Adds a step with guesses, of which the first `accepted` were right."""
        self._checked = _average(self._checked, seconds)
        self._gained = _average(self._gained, 1.0 + accepted)
        self._most = ops.MAX_ROWS - 1 if accepted == guessed else FIRST_GUESSES
        if self._gained * self._plain < self._checked:
            self._left, self._pause = self._pause, min(2 * self._pause, MAX_PAUSE)
            self._checked = self._gained = 0.0
        else:
            self._pause = FIRST_PAUSE


def _average(before: float, now: float) -> float:
    return now if not before else before + WEIGHT * (now - before)
