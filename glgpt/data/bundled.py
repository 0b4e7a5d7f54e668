"""Provides the data sets that come with the package: scenes by Shakespeare, this package's code, and generated texts.

The generators are seeded and draw from an integer hash, so a generated text is the same on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glgpt.errors import GlgptError, written
from glgpt.system.files import PACKAGE, data_path
from glgpt.text.dataset import shares, starts


@dataclass(frozen=True)
class Bundled:
    """A data set: a title, a description, its source, and the function that returns its text."""

    title: str
    about: str
    source: str
    make: Callable[[], str]


def bundled(name: str) -> str:
    """Returns the text of the data set `name`. Raises GlgptError if `SETS` does not have this name."""
    if name not in SETS:
        raise GlgptError(f"unknown data set {written(name)}; expected {', '.join(SETS)}")
    return SETS[name].make()


class _Dice:
    """A seeded generator of random integers below a bound."""

    def __init__(self, seed: int) -> None:
        self.seed, self.draws = seed, 0
        self._shares: list[float] = []

    def below(self, bound: int) -> int:
        self.draws += 1
        if self.draws > len(self._shares):  # computes all draws again, and at least as many more
            steps = np.arange(1, 2 * len(self._shares) + 1024, dtype=np.uint32)
            self._shares = shares(self.seed, steps, np.zeros(1, np.uint32)).tolist()
        return min(int(self._shares[self.draws - 1] * bound), bound - 1)

    def of(self, items: Sequence[str]) -> str:
        return items[self.below(len(items))]


def _plays() -> str:
    text = data_path("tests/data/shakespeare-validation.txt").read_text(encoding="utf-8")
    return text[text.index("\n\n") + 2 :]  # the file begins in the middle of a speech: skips the rest of it


def _code() -> str:
    """Returns source code of this package: the modules of `models` and `ops`."""
    files = sorted(path for name in ("models", "ops") for path in (PACKAGE / name).glob("*.py"))
    text = "\n".join(path.read_text(encoding="utf-8").strip() + "\n" for path in files)
    return re.sub(r"\n{3,}", "\n\n", text)  # `cleaning.clean` would remove repeated blank lines too


def _addition() -> str:
    """Returns a line for every pair of numbers from 0 to 99, such as "12+34=46", in random order."""
    order = np.argsort(starts(1, 0, 10_000, 1 << 31), kind="stable")
    return "".join(f"{n // 100}+{n % 100}={n // 100 + n % 100}\n" for n in order.tolist())


def _sorting() -> str:
    """Returns lines such as "314159=113459": six random digits, and the same digits sorted. No line occurs twice."""
    drawn = starts(2, 0, 16_000, 1_000_000)
    unique = list(dict.fromkeys(f"{n:06}" for n in drawn.tolist()))
    return "".join(f"{digits}={''.join(sorted(digits))}\n" for digits in unique)


STARTS = "A Al An Ar Be Bel Bri Ca Cor Da De El Em Fa Fen Ga Gwen Ha Hel I Is Jo Ka Kel La Lo Ma Mir Na Ne O Per Qui Ra"
STARTS += " Ro Sa Sel Ta Ther Ul Va Wil Xan Ya Zel"
MIDDLES = "ba bri da de di do la le li lo ma me mi na ne ni no ra re ri ro sa si ta te ti tha va ve vi"
ENDS = "bel da den dra dric fa gar ia iel in ion is ka la lan len lia lin mar na nan nor"
ENDS += " ra ran ric rin ron s sa th tor wen"


def _names() -> str:
    """Returns invented names, one per line, all different."""
    dice, found = _Dice(3), dict[str, None]()
    firsts, middles, lasts = STARTS.split(), MIDDLES.split(), ENDS.split()
    while len(found) < 8000:
        name = dice.of(firsts) + "".join(dice.of(middles) for _ in range(dice.below(3))) + dice.of(lasts)
        found[name] = None
    return "\n".join(found) + "\n"


NOUNS = {
    "ay": "day way bay clay spray",
    "ight": "light night height flight sight",
    "ea": "sea tree bee key lea",
    "ow": "snow crow glow meadow shadow",
    "ain": "rain grain plain lane chain",
    "one": "stone bone tone throne cone",
    "ing": "spring wing string ring king",
    "ore": "shore door floor core moor",
}
ADJECTIVES = (
    "old cold still small pale green grey quiet silver broken golden distant wandering sleeping hollow early late"
)
BEINGS = (
    "wind moon river heron miller child lantern ship swallow shepherd fox garden harbour bell orchard sparrow stranger"
)
VERBS = "goes turns waits falls sings climbs sleeps burns drifts returns listens wanders hides rises"
PLACES = "over under beyond beside above before behind across along"


def _poems() -> str:
    """Returns quatrains whose second and fourth lines rhyme."""
    dice, poems = _Dice(4), []
    rhymes = [words.split() for words in NOUNS.values()]
    adjectives, beings, verbs, places = (words.split() for words in (ADJECTIVES, BEINGS, VERBS, PLACES))
    for _ in range(1000):
        rhyme = rhymes[dice.below(len(rhymes))]
        first = dice.below(len(rhyme))
        second = (first + 1 + dice.below(len(rhyme) - 1)) % len(rhyme)
        lines = [
            f"The {dice.of(adjectives)} {dice.of(beings)} {dice.of(verbs)} alone,",
            f"{dice.of(places).capitalize()} the {dice.of(adjectives)} {rhyme[first]};",
            f"{_a(dice.of(adjectives))} {dice.of(beings)} {dice.of(verbs)} and {dice.of(verbs)}",
            f"{dice.of(places).capitalize()} the {dice.of(adjectives)} {rhyme[second]}.",
        ]
        poems.append("\n".join(lines) + "\n")
    return "\n".join(poems)


def _a(word: str) -> str:
    return f"{'An' if word[0] in 'aeiou' else 'A'} {word}"


OURS = "generated by this package from a fixed seed"
SETS = {
    "plays": Bundled(
        "Plays", "scenes from The Taming of the Shrew and The Tempest", "William Shakespeare, public domain", _plays
    ),
    "poems": Bundled("Poems", "a thousand quatrains that rhyme", OURS, _poems),
    "names": Bundled("Names", "8,000 invented names", OURS, _names),
    "code": Bundled("Code", "Python: modules of this package", "glgpt, MIT licence", _code),
    "addition": Bundled("Addition", "all sums of two numbers below 100", OURS, _addition),
    "sorting": Bundled("Sorting", "six digits put in order", OURS, _sorting),
}
