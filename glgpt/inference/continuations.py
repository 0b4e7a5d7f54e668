"""Continuing several prompts at once: which are under way, and what each of them yields."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence

from glgpt.errors import GlgptError
from glgpt.inference.batch import SPARE, BatchDecoder, Text
from glgpt.inference.generation import GenerationStats, StopText
from glgpt.inference.sampling import NOT_FINITE, Sampler
from glgpt.ops import MOST_ROWS
from glgpt.text.tokenizer import StreamDecoder, Tokenizer


class Row:
    """A prompt and its continuation so far; `run` says how it goes."""

    def __init__(self, ids: list[int], sampler: Sampler, tokens: int) -> None:
        self.ids, self.sampler, self.wanted = ids, sampler, tokens
        self.run, self.drawn = GenerationStats(len(ids)), 0
        self.text: Text | None = None
        self.next = -1  # the token that was chosen last
        self.ready: deque[int] = deque()
        self.error: GlgptError | None = None
        self.ended = tokens == 0
        self.watch: Callable[[int], bool] | None = None  # tells whether a stop text ends with this token


class Continuations:
    """Continues prompts side by side, up to eight at a time; when one ends, the next takes its place.

    Each is continued as `Decoder.generate` does it for one prompt, and gives the same tokens.
    """

    def __init__(self, decoder: BatchDecoder, rows: Sequence[Row], context: int, ends: Container[int]) -> None:
        self.decoder, self.context, self.ends = decoder, context, ends
        self._waiting = deque(row for row in rows if not row.ended)
        self._live: list[Row] = []
        needed = sorted(len(row.ids) + self._left(row) for row in self._waiting)[-MOST_ROWS:]
        self._reserved = sum(needed) + SPARE

    def stream(self, row: Row, check: Callable[[], None]) -> Iterator[int]:
        """The tokens of a row. When it has none ready, all rows under way are continued by one."""
        while True:
            while not row.ready and not row.ended:
                check()
                self._advance()
            if row.ready:
                yield row.ready.popleft()
            elif row.error:
                raise row.error
            else:
                return

    def _advance(self) -> None:
        """Takes in prompts that wait, or else continues all that are under way by a token."""
        self.decoder.reserve(self._reserved)
        if not self._admit():
            start = time.perf_counter()
            texts = [row.text for row in self._live if row.text]
            self.decoder.append(texts, [row.next for row in self._live])
            steps = [row.drawn for row in self._live]
            chosen = self.decoder.choose([row.sampler for row in self._live], steps)
            seconds = time.perf_counter() - start
            for row, token in zip(list(self._live), chosen, strict=True):
                row.run.decode_s += seconds
                row.run.decode_tokens += 1
                self._take(row, token)
        for row in self._live:
            if row.ended and row.text:
                self.decoder.end(row.text)
        self._live = [row for row in self._live if not row.ended]

    def _admit(self) -> bool:
        """Takes in the prompts that wait for a place, equal ones at once; whether there were any."""
        admitted = False
        while self._waiting and len(self._live) < MOST_ROWS:
            first = self._waiting[0]
            same = [row for row in self._waiting if row.ids == first.ids][: MOST_ROWS - len(self._live)]
            while same and not self._fits(same):
                same.pop()
            if not same and self._live:
                break
            same = same or [first]
            start = time.perf_counter()
            texts, tokens = self.decoder.begin(first.ids, [r.sampler for r in same], [r.drawn for r in same])
            seconds = time.perf_counter() - start
            for row, text, token in zip(same, texts, tokens, strict=True):
                self._waiting.remove(row)
                self._live.append(row)
                row.text, row.run.prefill_s = text, row.run.prefill_s + seconds
                self._take(row, token)
            admitted = True
        return admitted

    def _fits(self, rows: Sequence[Row]) -> bool:
        """Whether the caches have room for these, whatever becomes of those under way."""
        return len(rows[0].ids) + sum(map(self._left, (*rows, *self._live))) <= self.decoder.room

    def _left(self, row: Row) -> int:
        """The most tokens of a row that are still to be decoded."""
        known = len(row.text.ids) if row.text else len(row.ids)
        return min(row.wanted, self.context - known)

    def _take(self, row: Row, token: int | None) -> None:
        """A row's next token; None where the logits are not finite."""
        row.wanted, row.drawn = row.wanted - 1, row.drawn + 1
        if token is None:
            row.error, row.ended = GlgptError(NOT_FINITE), True
            return
        if token in self.ends:
            row.run.stopped, row.ended = "eos", True
            return
        row.next = token
        row.ready.append(token)
        if not row.wanted or (row.watch and row.watch(token)):
            row.ended = True
        elif row.text and len(row.text.ids) == self.context:
            self._slide(row, row.text, token)

    def _slide(self, row: Row, text: Text, token: int) -> None:
        """Has a row whose context is full begin anew with the later part of its text."""
        row.ids = list(text.ids)
        row.run.slide(row.ids, token, self.context)
        self.decoder.end(text)
        row.text = None
        self._live.remove(row)
        self._waiting.appendleft(row)


def watcher(tokenizer: Tokenizer | None, stop: str | Sequence[str] | None) -> Callable[[int], bool]:
    """Tells, token by token, whether a stop text has come; the text itself is cut by `Generation`."""
    decoder, stops = StreamDecoder(tokenizer) if tokenizer else None, StopText(stop)

    def found(token: int) -> bool:
        stops.push(decoder.push(token) if decoder else f" {token}")
        return stops.found

    return found
