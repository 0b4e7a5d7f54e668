"""Measures how much a model's generated text copies from the training text: words, and runs of characters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MIN_COPY_CHARACTERS = 20  # minimum length in characters of a copied run


@dataclass(frozen=True)
class Copies:
    """Records how much of a sample (a text that a model generated) occurs in the training text.

    `known_words` is the share (0 to 1) of the sample's words that occur in the training text; None if the sample has no
    words. `longest_copy` is the length of the sample's longest run of characters that occurs in the training text.
    `copied_runs` is the share (0 to 1) of the sample's runs of `MIN_COPY_CHARACTERS` characters that occur in the
    training text; None if the sample has fewer characters.
    """

    known_words: float | None
    longest_copy: int
    copied_runs: float | None


def words(text: str) -> list[str]:
    """Returns the words of a text: runs of letters, in lower case."""
    apart = {ord(c): " " for c in set(text) if not c.isalpha()}
    return text.translate(apart).lower().split()


def copies(sample: str, training: Iterable[str]) -> Copies:
    """Compares a sample with a training text that is given in pieces. A piece must not end inside a word."""
    automaton, known = _Automaton(sample), set[str]()
    for piece in training:
        known.update(words(piece))
        automaton.read(piece)
    found, longest = words(sample), automaton.longest()
    runs = longest[MIN_COPY_CHARACTERS - 1 :]  # the values at the last characters of all runs of MIN_COPY_CHARACTERS
    return Copies(
        sum(word in known for word in found) / len(found) if found else None,
        max(longest, default=0),
        sum(length >= MIN_COPY_CHARACTERS for length in runs) / len(runs) if runs else None,
    )


class _Automaton:
    """The suffix automaton of a sample (Blumer et al. 1985); it finds which of the sample's substrings a text has."""

    def __init__(self, sample: str) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.link, self.length, self.best = [-1], [0], [0]
        self.ends: list[int] = []  # the state of each prefix of the sample
        self.state = self.matched = 0  # state and length of the current match while reading
        for char in sample:
            self._append(char)

    def _state(self, length: int, following: dict[str, int], link: int) -> int:
        self.next.append(following)
        self.link.append(link)
        self.length.append(length)
        self.best.append(0)
        return len(self.next) - 1

    def _append(self, char: str) -> None:
        last = self.ends[-1] if self.ends else 0
        new = self._state(self.length[last] + 1, {}, 0)
        self.ends.append(new)
        while last >= 0 and char not in self.next[last]:
            self.next[last][char] = new
            last = self.link[last]
        if last < 0:
            return
        found = self.next[last][char]
        if self.length[found] == self.length[last] + 1:
            self.link[new] = found
            return
        clone = self._state(self.length[last] + 1, dict(self.next[found]), self.link[found])
        self.link[found] = self.link[new] = clone
        while last >= 0 and self.next[last].get(char) == found:
            self.next[last][char] = clone
            last = self.link[last]

    def read(self, text: str) -> None:
        """Reads the next piece of the text; `best[state]` is the length of the longest match that ended in `state`."""
        following, link, length, best = self.next, self.link, self.length, self.best
        state, matched = self.state, self.matched
        for char in text:
            to = following[state].get(char)
            while to is None and state:
                state = link[state]
                matched = length[state]
                to = following[state].get(char)
            if to is None:
                continue
            state, matched = to, matched + 1
            best[state] = max(best[state], matched)
        self.state, self.matched = state, matched

    def longest(self) -> list[int]:
        """Returns, for each character of the sample, the length of the longest copied run that ends with it."""
        best = list(self.best)
        for state in sorted(range(1, len(best)), key=lambda s: -self.length[s]):
            above = self.link[state]
            best[above] = max(best[above], min(best[state], self.length[above]))
        found = []
        for state in self.ends:
            while state > 0 and not best[state]:
                state = self.link[state]  # noqa: PLW2901, walk to shorter suffixes until one was found in the text
            found.append(best[state])
        return found
