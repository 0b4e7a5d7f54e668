"""Decides how many tokens of a text to guess, and measures whether guessing saves time."""

from __future__ import annotations

from glgpt import ops
from glgpt.inference.stages.drafts import PromptLookup

FIRST_GUESSES = 3  # maximum guesses of a step; more if all guesses of the previous checked step were correct
# Lengths in tokens of the first and the longest pause in guessing. Each pause is twice as long as the previous pause,
# unless guessing saved time between the two.
FIRST_PAUSE, MAX_PAUSE = 16, 256
WEIGHT = 0.3  # weight of the latest measurement in an average


class Speculation:
    """Decides how many tokens to guess, from the measured time of steps with and without guesses.

    A step with guesses computes several positions of the text at once, and yields the correct guesses and one more
    token. Guessing pauses if a token takes longer with guesses than without.
    """

    def __init__(self) -> None:
        self.lookup = PromptLookup()
        # Averages: seconds of a step without guesses, seconds of a step with guesses, tokens from a step with guesses.
        self._plain = self._checked = self._gained = 0.0
        self._most, self._pause, self._left = FIRST_GUESSES, FIRST_PAUSE, 0

    def guesses(self, most: int) -> list[int]:
        """Returns up to `most` guesses; [] during a pause, and before a step without guesses has been measured."""
        if self._left or not self._plain:
            self._left = max(0, self._left - 1)
            return []
        return self.lookup.draft(min(most, self._most))

    def plain_step(self, seconds: float) -> None:
        """Adds the time of a step without guesses to the average."""
        self._plain = _average(self._plain, seconds)

    def checked_step(self, seconds: float, guessed: int, accepted: int) -> None:
        """Adds a step with `guessed` guesses, of which the first `accepted` were correct, to the averages.

        Starts a pause if, on average, a token from steps with guesses takes longer than a step without guesses.
        """
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
