"""Counts the characters, lines and scripts of a text.

In a page, `viewer/src/training/cleaning.ts` does the same, but takes a letter's script from Unicode's property `Script`
instead of the letter's name. The results differ for a few letters: a fullwidth A is Latin in the page and "other" in
this module.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass

from glgpt.text.files import Text

SCRIPTS = {  # scripts, by the first word of the Unicode names of their letters, such as LATIN SMALL LETTER A
    "LATIN": "Latin",
    "GREEK": "Greek",
    "CYRILLIC": "Cyrillic",
    "ARABIC": "Arabic",
    "HEBREW": "Hebrew",
    "DEVANAGARI": "Devanagari",
    "THAI": "Thai",
    "HANGUL": "Hangul",
    "HIRAGANA": "Hiragana",
    "KATAKANA": "Katakana",
    "CJK": "Han",
}


@dataclass(frozen=True)
class Inspection:
    """Counts of a text.

    `scripts` is each script's share of the letters, largest first; `held_back` is the number of bytes that are held
    back for validation.
    """

    bytes: int
    characters: int
    lines: int
    distinct: int  # number of different characters
    scripts: dict[str, float]
    held_back: int


def inspect(text: str | Text, validation: float = 0.1) -> Inspection:
    """Returns the counts of a text. `validation` is the share of the text that is held back for validation.

    Raises GlgptError for the texts for which `Text.of_string` and `Text.pieces` raise it.
    """
    source = Text.of_string(text) if isinstance(text, str) else text
    characters: Counter[str] = Counter()
    for piece, _ in source.pieces():
        characters.update(piece)
    letters: Counter[str] = Counter()
    for character, count in characters.items():
        if character.isalpha():
            letters[_script(character)] += count
    total = letters.total() or 1
    scripts = {name: count / total for name, count in sorted(letters.items(), key=lambda x: (-x[1], x[0]))}
    held = source.split(validation)[1].size
    return Inspection(source.size, characters.total(), characters["\n"], len(characters), scripts, held)


def _script(letter: str) -> str:
    return SCRIPTS.get(unicodedata.name(letter, "").split(" ")[0].split("-")[0], "other")
