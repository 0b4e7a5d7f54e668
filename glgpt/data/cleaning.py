"""Removes parts of a text that a model should not learn. In a page, `viewer/src/training/cleaning.ts` does the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from glgpt.errors import GlgptError

STEPS = ("headers", "lines", "blanks", "duplicates")
# A lookahead and a lookbehind make matching take linear time for any text. The lookahead of `_BEGIN` checks first that
# the line has a line break at its end; only then is the line searched for `***`. The lookbehind of `_BLANK` lets a
# match start only at the first of several spaces or tabs.
_BEGIN = re.compile(r"^\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG(?=[^\n]*\n)[^\n]*\*\*\*[^\n]*\n", re.MULTILINE)
_END = re.compile(r"^\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG", re.MULTILINE)
_BLANK = re.compile(r"(?<![ \t])[ \t]+$", re.MULTILINE)
_RUN = re.compile(r"\n{3,}")


@dataclass(frozen=True)
class Removed:
    """The number of characters that a cleaning step removed, and the number of places that it changed."""

    step: str
    characters: int
    places: int


def clean(text: str | Iterable[str], steps: Iterable[str] = STEPS) -> tuple[str, list[Removed]]:
    """Returns the cleaned text and what each step removed. If `text` is several documents, joins them after cleaning.

    `headers` removes the licence before and after a Project Gutenberg book. `lines` normalises line endings to LF.
    `blanks` removes spaces and tabs at the ends of lines, and all but one of several consecutive blank lines.
    `duplicates` removes documents that repeat an earlier one exactly. Raises GlgptError for an unknown step.
    """
    wanted = list(steps)
    if unknown := [step for step in wanted if step not in STEPS]:
        raise GlgptError(f"unknown cleaning step {unknown[0]!r}; expected {', '.join(STEPS)}")
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
