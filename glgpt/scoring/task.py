"""Scores toy tasks: texts with lines `question=answer`, where each answer is either right or wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LINE = re.compile(r"([^=\n]+=)([^=\n]+)")
SEEN = 200  # number of first lines that decide whether a text is a task


@dataclass(frozen=True)
class Answers:
    """The share of right answers, in total and by the answer's character, for questions that the training text lacks.

    An answer is right if each of its tokens, and the line's end, is the likeliest one, as in greedy generation.
    """

    lines: int
    exact_match: float
    by_position: tuple[float, ...]


def is_task(text: str) -> bool:
    """True if all first lines of a text have the form `question=answer`."""
    lines = text.split("\n")[: SEEN + 1][:-1]
    return bool(lines) and all(LINE.fullmatch(line) for line in lines)


def questions(text: Iterable[str]) -> set[str]:
    """Returns the questions of a text. Each piece of it must end at the end of a line."""
    lines = (LINE.fullmatch(line) for piece in text for line in piece.split("\n"))
    return {match[1] for match in lines if match}


def answers(windows: Iterable[tuple[list[bytes], NDArray[np.bool_]]], seen: set[str]) -> Answers | None:
    """Scores the lines that lie completely within a window. Returns None if there are none.

    A window holds the bytes of its tokens `[context + 1]`, and for each but the first whether it was predicted right
    `[context]`.
    """
    lines, right = 0, 0
    positions: list[list[int]] = []  # [predicted right, predicted] by character
    for number, (tokens, hits) in enumerate(windows):
        ends = np.cumsum([len(token) for token in tokens])
        text = b"".join(tokens)
        begin = 0 if number == 0 else text.find(b"\n") + 1
        while begin >= 0 and (end := text.find(b"\n", begin)) >= 0:
            match = LINE.fullmatch(text[begin:end].decode("utf-8", errors="replace"))
            answer = text.find(b"=", begin) + 1
            first, last = np.searchsorted(ends, (answer, end), side="right")
            if match and match[1] not in seen and first:
                found = hits[first - 1 : last]
                lines += 1
                right += bool(found.all())
                starts = np.maximum(ends[first - 1 : last] - answer, 0)
                for at, hit in zip(starts.tolist(), found.tolist(), strict=True):
                    positions += [[0, 0] for _ in range(at + 1 - len(positions))]
                    positions[at][0] += hit
                    positions[at][1] += 1
            begin = end + 1
    if not lines:
        return None
    return Answers(lines, right / lines, tuple(hit / count if count else 0.0 for hit, count in positions))
