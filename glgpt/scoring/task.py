"""Scores toy tasks: texts of lines `question=answer`, where each answer is either correct or wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LINE = re.compile(r"([^=\n]+=)([^=\n]+)")
SEEN = 200  # a text is a task if its first 200 lines have this form


@dataclass(frozen=True)
class Answers:
    """The share of correct answers among the questions that do not occur in the training text.

    `lines` is the number of scored lines, and `exact_match` is the share of lines with a correct answer. An answer is
    correct if the model predicts each of its tokens, including the end of the line, as the likeliest one.
    `by_position[i]` is the share of correctly predicted tokens among those that start at byte i of an answer. A token
    that begins before the answer and ends in it counts as one that starts at byte 0.
    """

    lines: int
    exact_match: float
    by_position: tuple[float, ...]


def is_task(text: str) -> bool:
    """True if all of a text's first `SEEN` lines have the form `question=answer`."""
    lines = text.split("\n")[: SEEN + 1][:-1]
    return bool(lines) and all(LINE.fullmatch(line) for line in lines)


def questions(text: Iterable[str]) -> set[str]:
    """Returns the questions of a text that is given in pieces. Each piece must end at the end of a line."""
    lines = (LINE.fullmatch(line) for piece in text for line in piece.split("\n"))
    return {match[1] for match in lines if match}


def answers(windows: Iterable[tuple[list[bytes], NDArray[np.bool_]]], seen: set[str]) -> Answers | None:
    """Scores the lines that lie completely within a window, except those whose question is in `seen`.

    A window is a pair: the bytes of each of its `context` + 1 tokens, and an array with a value for each token after
    the first, which is True if the token was predicted correctly. Returns None if no line can be scored.
    """
    lines, right = 0, 0
    positions: list[list[int]] = []  # by byte of the answer: tokens [predicted correctly, predicted]
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
