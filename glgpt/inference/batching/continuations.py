"""Continues several prompts at once: schedules them and streams each one's tokens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence

from glgpt.errors import GlgptError
from glgpt.inference.batching.batch import SPARE, BatchDecoder, Text
from glgpt.inference.generation import GenerationStats, StopText
from glgpt.inference.sampling import NOT_FINITE, Sampler
from glgpt.ops import MAX_ROWS
from glgpt.text.tokenizer import StreamDecoder, Tokenizer


class Row:
    """A prompt and its continuation so far; `run` holds its statistics."""

    def __init__(self, ids: list[int], sampler: Sampler, tokens: int) -> None:
        self.ids, self.sampler, self.wanted = ids, sampler, tokens
        self.run, self.drawn = GenerationStats(len(ids)), 0
        self.text: Text | None = None
        self.next = -1  # the last chosen token
        self.ready: deque[int] = deque()
        self.error: GlgptError | None = None
        self.ended = tokens == 0
        self.watch: Callable[[int], bool] | None = None  # returns True if this token completes a stop text


class Continuations:
    """Continues prompts side by side, up to eight at a time; when one ends, the next takes its place.

    Each is continued like a single prompt in `Decoder.generate`, with the same tokens.
    """

    def __init__(self, decoder: BatchDecoder, rows: Sequence[Row], context: int, ends: Container[int]) -> None:
        self.decoder, self.context, self.ends = decoder, context, ends
        self._waiting = deque(row for row in rows if not row.ended)
        self._live: list[Row] = []
        needed = sorted(len(row.ids) + self._left(row) for row in self._waiting)[-MAX_ROWS:]
        self._reserved = sum(needed) + SPARE

    def stream(self, row: Row, check: Callable[[], None]) -> Iterator[int]:
        """Yields the tokens of a row. If none is ready, continues all active rows by one token."""
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
        """Starts waiting prompts, or else continues all active rows by one token."""
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
        """Starts waiting prompts while places are free, equal prompts together; returns True if any were started."""
        admitted = False
        while self._waiting and len(self._live) < MAX_ROWS:
            first = self._waiting[0]
            same = [row for row in self._waiting if row.ids == first.ids][: MAX_ROWS - len(self._live)]
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
        """True if the caches can hold these rows even if all active rows grow to their full length."""
        return len(rows[0].ids) + sum(map(self._left, (*rows, *self._live))) <= self.decoder.room

    def _left(self, row: Row) -> int:
        """Returns the maximum number of tokens of a row that are still to be decoded."""
        known = len(row.text.ids) if row.text else len(row.ids)
        return min(row.wanted, self.context - known)

    def _take(self, row: Row, token: int | None) -> None:
        """Adds a row's next token; None, if its logits are not finite, ends the row with an error."""
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
        """Queues a row whose context is full, to be read again from the later part of its text."""
        row.ids = list(text.ids)
        row.run.slide(row.ids, token, self.context)
        self.decoder.end(text)
        row.text = None
        self._live.remove(row)
        self._waiting.appendleft(row)


def watcher(tokenizer: Tokenizer | None, stop: str | Sequence[str] | None) -> Callable[[int], bool]:
    """Returns a function that is called with each token and returns True once a stop text is complete.

    `Generation` cuts the text itself at the stop text.
    """
    decoder, stops = StreamDecoder(tokenizer) if tokenizer else None, StopText(stop)

    def found(token: int) -> bool:
        stops.push(decoder.push(token) if decoder else f" {token}")
        return stops.found

    return found
