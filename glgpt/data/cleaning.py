"""Cleaning a text up: what a model should not learn. `viewer/src/training/cleaning.ts` does the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from glgpt.errors import GlgptError

STEPS = ("headers", "lines", "blanks", "duplicates")
# Linear in the text, whatever it holds: the lookahead ends the search for `***` in a line that never ends, and the
# lookbehind starts a run of blanks at its first blank only.
_BEGIN = re.compile(r"^\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG(?=[^\n]*\n)[^\n]*\*\*\*[^\n]*\n", re.MULTILINE)
_END = re.compile(r"^\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG", re.MULTILINE)
_BLANK = re.compile(r"(?<![ \t])[ \t]+$", re.MULTILINE)
_RUN = re.compile(r"\n{3,}")


@dataclass(frozen=True)
class Removed:
    """What a step changed: characters that it took away, and places where it did."""

    step: str
    characters: int
    places: int


def clean(text: str | Iterable[str], steps: Iterable[str] = STEPS) -> tuple[str, list[Removed]]:
    """A text, or documents that become one, without what the steps take away, and what that was.

    `headers`: the licence before and behind a book of Project Gutenberg. `lines`: line endings become LF. `blanks`:
    blanks at a line's end, and all blank lines but one. `duplicates`: documents that came before, word for word.
    Raises GlgptError for an unknown step.
    """
    wanted = list(steps)
    if unknown := [step for step in wanted if step not in STEPS]:
        raise GlgptError(f"{unknown[0]!r} is no step of cleaning; there are {', '.join(STEPS)}")
    documents = [text] if isinstance(text, str) else list(text)
    removed = []
    for step in STEPS:
        if step in wanted:
            before, places = sum(map(len, documents)), 0
            if step == "duplicates":
                kept = list(dict.fromkeys(documents))
                documents, places = kept, len(documents) - len(kept)
            else:
                cleaned = [_step(step, document) for document in documents]
                documents, places = [one for one, _ in cleaned], sum(count for _, count in cleaned)
            removed.append(Removed(step, before - sum(map(len, documents)), places))
    return "".join(documents), removed


def _step(step: str, text: str) -> tuple[str, int]:
    if step == "headers":
        places = 0
        if found := _BEGIN.search(text):
            text, places = text[found.end() :].lstrip("\r\n"), 1
        if found := _END.search(text):
            text, places = text[: found.start()].rstrip("\r\n") + "\n", places + 1
        return text, places
    if step == "lines":
        places = text.count("\r")
        return text.replace("\r\n", "\n").replace("\r", "\n"), places
    text, ends = _BLANK.subn("", text)
    text, runs = _RUN.subn("\n\n", text)
    return text, ends + runs
