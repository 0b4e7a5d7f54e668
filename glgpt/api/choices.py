"""Collects one text of an answer during its generation: pieces, log probabilities, and the reason why it ended."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glgpt.errors import GlgptError
from glgpt.inference.batching.continuations import Row
from glgpt.inference.generation import StopText
from glgpt.program.formats import Floats
from glgpt.text.tokenizer import StreamDecoder, Tokenizer


@dataclass(frozen=True)
class TokenChance:
    """A token, its log probability in the model, and in `top` the likeliest tokens with their log probabilities."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Event:
    """A piece of text number `index`, and its tokens with log probabilities (`chances`).

    With `reason`, the text has ended; with `error`, it has failed.
    """

    index: int
    text: str = ""
    chances: Sequence[TokenChance] = ()
    reason: str | None = None
    error: GlgptError | None = None


@dataclass(eq=False)
class Choice:
    """A text that is being generated. `emit` receives the text's events; `ends` are the token ids that end the text.

    `row` holds the prompt and the continuation; the model continues the rows of all texts together. `top` is the number
    of likeliest tokens to report with each token; None reports no log probabilities. The public methods are called in
    the thread of the model.
    """

    index: int
    row: Row
    tokenizer: Tokenizer
    stops: StopText
    emit: Callable[[Event], None]
    ends: Container[int] = ()
    top: int | None = None
    text: str = ""
    tokens: int = 0
    done: bool = False
    _chances: list[TokenChance] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Registers callbacks with the row."""
        self._decoder = StreamDecoder(self.tokenizer)
        self.row.watch = self.take
        if self.top is not None:
            self.row.observe = self.observe

    def observe(self, logits: Floats, token: int) -> None:
        """Stores the log probability of a token that was chosen from these logits, unless the token ends the text."""
        if token in self.ends:
            return
        row = logits.astype(np.float64)
        row -= row.max()
        row -= np.log(np.exp(row).sum())
        count = min(self.top or 0, len(row))
        best: Sequence[Any] = np.argpartition(-row, count - 1)[:count].tolist() if count else []
        top = sorted(((i, float(row[i])) for i in best), key=lambda pair: (-pair[1], pair[0]))
        self._chances.append(TokenChance(token, float(row[token]), tuple(top)))

    def take(self, token: int) -> bool:
        """Adds a token; returns True if it completes a stop text."""
        self.tokens += 1
        self._send(self.stops.push(self._decoder.push(token)))
        return self.stops.found

    def finish(self) -> None:
        """Sends the remaining text and the reason why the text ended, or the error with which it failed."""
        if self.done:
            return
        self.done = True
        if self.row.error:
            self.emit(Event(self.index, error=self.row.error))
            return
        if not self.stops.found:
            rest = self.stops.push(self._decoder.flush())
            self._send(rest + self.stops.flush(), last=True)
        ended = self.stops.found or self.row.run.stopped == "eos"
        self.emit(Event(self.index, reason="stop" if ended else "length"))

    def _send(self, piece: str, last: bool = False) -> None:
        self.text += piece
        if piece or (last and self._chances):
            chances, self._chances = self._chances, []
            self.emit(Event(self.index, piece, chances))
