"""Continues several prompts at once: schedules the prompts and streams the tokens of each."""

from __future__ import annotations

import bisect
import itertools
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence

from glgpt.errors import GlgptError
from glgpt.inference.batching.batch import SPARE, BatchDecoder, Text
from glgpt.inference.batching.lookup import Speculation
from glgpt.inference.chunks import Chunk
from glgpt.inference.generation import END, GenerationStats, StopText
from glgpt.inference.sampling import NOT_FINITE, Sampler
from glgpt.ops import MAX_ROWS
from glgpt.program.formats import Floats
from glgpt.text.tokenizer import StreamDecoder, Tokenizer

READ_TOKENS = 256  # tokens of a long prompt that are read between two steps: the size of the largest chunk


class Row:
    """A prompt and its continuation so far; `run` holds the statistics of the continuation.

    `wanted` is the maximum number of tokens still to be chosen, and `drawn` is the number of tokens chosen so far.
    `chunks` are the chunks in which the prompt is read (`inference.decoder.Decoder.first`). `observe`, if set, is
    called for each token with two arguments: the logits from which the token was chosen, and the token. `cached` is the
    number of the prompt's tokens that the caches held before the first part of the prompt was read (None until then).
    `read_s` is the time in seconds that reading parts of the prompt took so far.
    """

    def __init__(self, ids: list[int], sampler: Sampler, tokens: int, chunks: Sequence[Chunk] | None = None) -> None:
        self.ids, self.sampler, self.wanted, self.chunks = ids, sampler, tokens, chunks
        self.observe: Callable[[Floats, int], None] | None = None
        self.speculation: Speculation | None = None
        self.cached: int | None = None
        self.read_s = 0.0
        self.run, self.drawn = GenerationStats(len(ids)), 0
        self.text: Text | None = None
        self.next = -1  # the last chosen token
        self.ready: deque[int] = deque()  # chosen tokens that `stream` has not yielded yet
        self.error: GlgptError | None = None
        self.ended = tokens == 0
        self.watch: Callable[[int], bool] | None = None  # True if the token given to it completes a stop text


class Continuations:
    """Continues prompts side by side, up to `most` at a time; when one ends, the next one starts.

    Each `Row` has one prompt. A long prompt with chunks is read in parts, between the steps of the active rows, so that
    the active rows do not have to wait until the whole prompt is read. With `speculate`, if only one prompt is active,
    its next tokens are guessed from its text so far, and one step checks several guesses. `add` and `cancel` may be
    called between any two steps (`advance`). Each prompt gets the tokens that `Decoder.generate` would yield for it
    alone.
    """

    def __init__(
        self,
        decoder: BatchDecoder,
        rows: Sequence[Row],
        context: int,
        ends: Container[int],
        most: int = MAX_ROWS,
        speculate: bool = False,
    ) -> None:
        self.decoder, self.context, self.ends, self.most, self.speculate = decoder, context, ends, most, speculate
        self._waiting = deque(row for row in rows if not row.ended)
        self._live: list[Row] = []
        needed = sorted(len(row.ids) + self._left(row) for row in self._waiting)[-MAX_ROWS:]
        self._reserved = sum(needed) + SPARE

    def add(self, row: Row) -> None:
        """Queues the prompt of a row; does nothing for a row that has ended."""
        if not row.ended:
            self._waiting.append(row)

    def cancel(self, row: Row) -> None:
        """Ends a row that is queued or active; does nothing for a row that has ended."""
        row.ended = True
        if row in self._waiting:
            self._waiting.remove(row)
        self._remove_ended()

    @property
    def waiting(self) -> int:
        """Returns the number of queued prompts."""
        return len(self._waiting)

    @property
    def active(self) -> int:
        """Returns the number of prompts that are being continued."""
        return len(self._live)

    def stream(self, row: Row, check: Callable[[], None]) -> Iterator[int]:
        """Yields the tokens of a row. If no token is ready, calls `advance`, which continues all active rows."""
        while True:
            while not row.ready and not row.ended:
                check()
                self.advance()
            if row.ready:
                yield row.ready.popleft()
            elif row.error:
                raise row.error
            else:
                return

    def advance(self) -> None:
        """Starts queued prompts; if none can start, continues all active rows by one token.

        If the next prompt is long, reads a part of the prompt before the step. With `speculate`, a single active row is
        continued by the correct guesses and one more token. If the step fails or is interrupted (KeyboardInterrupt),
        the next call repeats it for the rows that got no token.
        """
        self.decoder.reserve(self._reserved)
        before = [(row, row.text, row.drawn, len(row.text.ids)) for row in self._live if row.text]
        try:
            if not self._admit() and not self._checked_step():
                self._plain_step()
        except BaseException:
            for row, text, drawn, held in before:
                if row.drawn == drawn:
                    del text.ids[held:]
                    self.decoder.end(text)  # the text's rows are computed again from its ids
            raise
        finally:
            self._remove_ended()

    def _plain_step(self) -> None:
        """Continues all active rows by one token."""
        start = time.perf_counter()
        texts = [row.text for row in self._live if row.text]
        self.decoder.append(texts, [row.next for row in self._live])
        steps = [row.drawn for row in self._live]
        chosen = self.decoder.following([row.sampler for row in self._live], steps, texts)
        observing = any(row.observe for row in self._live)
        logits = self.decoder.logits() if observing else [None] * len(chosen)
        seconds = time.perf_counter() - start
        for row, token, own in zip(list(self._live), chosen, logits, strict=True):
            if row.observe and own is not None and token is not None and token != END:
                row.observe(own, token)
            row.run.decode_s += seconds
            row.run.decode_tokens += 1
            self._take(row, token)
            if row.speculation:
                row.speculation.plain_step(seconds)

    def _checked_step(self) -> bool:
        """Continues the only active row by the correct guesses and one more token.

        Returns False, and runs no step, if no tokens are guessed. Tokens are never guessed if `speculate` is False, if
        several rows are active, if the row has an `observe`, or if the sampler adjusts logits or has a constraint.
        """
        row = self._live[0]
        text, sampler = row.text, row.sampler
        if not self.speculate or len(self._live) > 1 or not text or sampler.matcher or sampler.adjusts or row.observe:
            return False
        if row.speculation is None:
            row.speculation = Speculation()
        lookup = row.speculation.lookup
        lookup.extend([*text.ids, row.next][len(lookup.ids) :])
        guesses = row.speculation.guesses(min(MAX_ROWS - 1, row.wanted - 1, self.context - len(text.ids) - 2))
        if not guesses:
            return False
        start = time.perf_counter()
        chosen = self.decoder.check_guesses(text, [row.next, *guesses], sampler, row.drawn)
        seconds = time.perf_counter() - start
        row.speculation.checked_step(seconds, len(guesses), len(chosen) - 1)
        row.run.checked_steps += 1
        row.run.guessed_tokens += len(guesses)
        row.run.accepted_tokens += len(chosen) - 1
        row.run.decode_s += seconds
        for token in chosen:
            if not row.ended:
                row.run.decode_tokens += 1
                self._take(row, token)
        return True

    def _remove_ended(self) -> None:
        for row in self._live:
            if row.ended and row.text:
                self.decoder.end(row.text)
        self._live = [row for row in self._live if not row.ended]

    def _admit(self) -> bool:
        """Starts queued prompts, equal prompts together; returns True if any were started.

        Stops when `most` prompts are active, or when the next prompt may not fit into the caches. If no prompt is
        active, starts the next one even if it may not fit.
        """
        admitted = False
        while self._waiting and len(self._live) < self.most:
            first = self._waiting[0]
            same = [row for row in self._waiting if row.ids == first.ids][: self.most - len(self._live)]
            while same and not self._fits(same):
                same.pop()
            if not same and self._live:
                break
            same = same or [first]
            if self._read_part(first):
                return admitted or not self._live
            start = time.perf_counter()
            samplers, steps = [r.sampler for r in same], [r.drawn for r in same]
            texts, tokens = self.decoder.begin(first.ids, samplers, steps, first.chunks)
            logits = self.decoder.decoder.logits() if any(row.observe for row in same) else None
            seconds, first.read_s = time.perf_counter() - start + first.read_s, 0.0
            cached = self.decoder.decoder.cached
            cached = cached if first.cached is None else min(cached, first.cached)
            for row, text, token in zip(same, texts, tokens, strict=True):
                if row.observe and logits is not None and token is not None and token != END:
                    row.observe(logits, token)
                self._waiting.remove(row)
                self._live.append(row)
                row.text, row.run.prefill_s = text, row.run.prefill_s + seconds
                row.run.cached_tokens = cached
                row.run.prefill_tokens -= cached
                self._take(row, token)
            admitted = True
        return admitted

    def _read_part(self, row: Row) -> bool:
        """Reads the next chunks of a queued prompt, of `READ_TOKENS` tokens in all.

        Returns False, and reads nothing, if the prompt has no chunks, or at most `READ_TOKENS` unread tokens.
        """
        if row.chunks is None:
            return False
        decoder, start = self.decoder.decoder, time.perf_counter()
        held = decoder.held(row.ids, row.chunks)
        ends = list(itertools.accumulate(chunk.valid for chunk in row.chunks))
        read = ends[held - 1] if held else 0
        if row.cached is None:
            row.cached = read
        if len(row.ids) - read <= READ_TOKENS:
            return False
        decoder.fill(row.ids, row.chunks[: max(held + 1, bisect.bisect_right(ends, read + READ_TOKENS))])
        row.read_s += time.perf_counter() - start
        return True

    def _fits(self, rows: Sequence[Row]) -> bool:
        """True if the caches can hold these equal prompts, even if these and all active rows reach full length.

        Other texts, such as those of a batch that is no longer read, may lose their rows.
        """
        room = self.decoder.room([row.text for row in self._live if row.text])
        return len(rows[0].ids) + sum(map(self._left, (*rows, *self._live))) <= room

    def _left(self, row: Row) -> int:
        """Returns the maximum number of tokens that a row may still get before it ends or its context is full."""
        known = len(row.text.ids) if row.text else len(row.ids)
        return min(row.wanted, self.context - known)

    def _take(self, row: Row, token: int | None) -> None:
        """Adds the next token to a row and to the matcher of its sampler.

        If the token is an end token, or None, ends the row instead. None stands for an error, such as logits that are
        not finite.
        """
        row.wanted, row.drawn = row.wanted - 1, row.drawn + 1
        if token is None:
            row.error, row.ended = row.sampler.error or GlgptError(NOT_FINITE), True
            return
        if token == END or token in self.ends:
            row.run.stopped, row.ended = "eos", True
            return
        row.next = token
        row.ready.append(token)
        if row.sampler.matcher:
            try:
                row.sampler.matcher.accept(token)
            except GlgptError as error:
                row.ready.pop()
                row.error, row.ended = error, True
                return
        stopped = bool(row.watch and row.watch(token))
        if stopped or not row.wanted:
            row.ended = True
        elif row.text and len(row.text.ids) == self.context:
            self._slide(row, row.text, token)

    def _slide(self, row: Row, text: Text, token: int) -> None:
        """Queues a row whose context is full as the next to start; the later part of its text is then read again."""
        row.ids = list(text.ids)
        row.run.slide(row.ids, token, self.context)
        self.decoder.end(text)
        row.text = row.chunks = row.speculation = None
        self._live.remove(row)
        self._waiting.appendleft(row)


def watcher(tokenizer: Tokenizer | None, stop: str | Sequence[str] | None) -> Callable[[int], bool]:
    """Returns a function to call with each token; it returns True once a stop text is complete.

    The function does not change the text; `generation.Generation` ends the text at the stop text.
    """
    decoder, stops = StreamDecoder(tokenizer) if tokenizer else None, StopText(stop)

    def found(token: int) -> bool:
        stops.push(decoder.push(token) if decoder else f" {token}")
        return stops.found

    return found
