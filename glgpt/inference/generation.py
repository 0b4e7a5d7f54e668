"""Streams a generation as token ids, or as text in whole characters up to a stop text."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from glgpt.errors import ArgumentError, written
from glgpt.inference.arguments.checks import items
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.chunks import window_start
from glgpt.text.tokenizer import StreamDecoder, Tokenizer


@dataclass
class GenerationStats:
    """Statistics of a generation. Seconds are wall time.

    `stopped` is the reason for the end: "tokens" (the maximum number was reached), "eos" (an end token, or a constraint
    that allows no further token) or "text" (a stop text). `slides` counts how often the text outgrew the context and
    its later part was read again (`window_start`); `prefill_tokens` includes the tokens that were read again.
    `cached_tokens` counts the tokens of a chat's prompt that were already in the caches. With speculation,
    `checked_steps` counts the steps that checked guessed tokens, `guessed_tokens` counts the guesses, and
    `accepted_tokens` counts the correct guesses.
    """

    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0
    stopped: str = "tokens"
    slides: int = 0
    cached_tokens: int = 0
    checked_steps: int = 0
    guessed_tokens: int = 0
    accepted_tokens: int = 0

    def slide(self, ids: list[int], token: int, context: int) -> None:
        """Makes space in the full context: drops the first tokens of `ids`, then appends `token`."""
        del ids[: window_start(len(ids) + 1, context)]
        ids.append(token)
        self.slides += 1
        self.prefill_tokens += len(ids)


STOPS = "a string, or a list of strings"
END = -1  # returned instead of a token if the text is complete
# A function that is called with the number of tokens still to be generated. It returns the next token (or END), and
# True if the caches were refilled for this token.
Next = Callable[[int], tuple[int, bool]]


def continuation(
    ids: list[int],
    tokens: int,
    ends: Container[int],
    context: int,
    run: GenerationStats,
    ready: Callable[[], None],
    following: Next,
) -> Iterator[int]:
    """Yields up to `tokens` ids that continue `ids`, and appends each to `ids`; stops before an id in `ends`.

    If the context is full, the first tokens of `ids` are dropped before a token is appended. The last token of the
    generation is not appended to a full context. `run` already counts the tokens of the prompt; it receives the other
    statistics. `ready` is called before each token, outside the token's measured time; `following` returns the token
    after `ids`.
    """
    for wanted in range(tokens, 0, -1):
        ready()
        start = time.perf_counter()
        token, refilled = following(wanted)
        seconds = time.perf_counter() - start
        if refilled:
            run.prefill_s += seconds
        else:
            run.decode_s += seconds
            run.decode_tokens += 1
        if token == END or token in ends:
            run.stopped = "eos"
            return
        yield token
        if len(ids) < context:
            ids.append(token)
        elif wanted > 1:
            run.slide(ids, token, context)


class TokenStream(Iterator[int]):
    """An iterator of generated token ids; `stats` holds the statistics so far."""

    def __init__(self, ids: Iterator[int], stats: GenerationStats) -> None:
        self._ids, self.stats = ids, stats

    def __next__(self) -> int:
        return next(self._ids)


class StopText:
    """Passes on a stream of text until one of `stops` appears; holds back text that may be the start of a stop text."""

    def __init__(self, stops: str | Sequence[str] | None) -> None:
        texts = [stops] if isinstance(stops, str) else [] if stops is None else items("stop", stops, STOPS)
        if not all(isinstance(text, str) for text in texts):
            raise ArgumentError(f"stop is {written(stops)}; it must be {STOPS}")
        self.stops = [text for text in texts if text]
        self.held, self.found = "", False

    def push(self, text: str) -> str:
        """Adds text and returns the text that may be shown now; returns "" if a stop text was `found` earlier."""
        if self.found:
            return ""
        text, self.held = self.held + text, ""
        ends = [at for at in map(text.find, self.stops) if at >= 0]
        waiting = min((self._begun(text, stop) for stop in self.stops), default=len(text))
        if ends and min(ends) <= waiting:  # no stop text that is still incomplete begins earlier
            self.found = True
            return text[: min(ends)]
        self.held = text[waiting:]
        return text[:waiting]

    @staticmethod
    def _begun(text: str, stop: str) -> int:
        """Returns the start of the longest suffix of `text` that is a prefix of `stop`; `len(text)` if none is."""
        most = min(len(stop) - 1, len(text))
        return len(text) - next(n for n in range(most, -1, -1) if text.endswith(stop[:n]))

    def flush(self) -> str:
        """Ends the stream: returns the text that is still held back, up to the first stop text in it."""
        text, self.held = self.held, ""
        ends = [at for at in map(text.find, self.stops) if at >= 0]
        self.found = self.found or bool(ends)
        return text[: min(ends, default=len(text))]


class Generation(Iterator[str]):
    """A continuation as text: iterate over it for pieces of whole characters, or call `read()` for the whole text.

    `ids` and `text` hold the ids and the text generated so far, `stats` holds the statistics, and `sampling` holds the
    options. The same `seed` gives the same text. Without a tokenizer, the text is the ids, each preceded by a space.
    """

    def __init__(
        self,
        tokens: TokenStream,
        tokenizer: Tokenizer | None,
        sampling: SamplingOptions,
        stop: str | Sequence[str] | None = None,
    ) -> None:
        self.ids, self.text, self.stats = list[int](), "", tokens.stats
        self.sampling = sampling.seeded()
        decoder = StreamDecoder(tokenizer) if tokenizer else None
        self._pieces = _written(tokens, self.ids, decoder, StopText(stop))

    @property
    def seed(self) -> int:
        """The seed of the sampling: the given one, or the one that was drawn."""
        return self.sampling.seed or 0

    def __next__(self) -> str:
        piece = next(filter(None, self._pieces))  # skips "": a token may end inside a character, or begin a stop text
        self.text += piece
        return piece

    def read(self) -> str:
        """Generates to the end and returns all the text."""
        for _ in self:
            pass
        return self.text

    def figures(self) -> dict[str, Any]:
        """Returns the seed, tokens, seconds, rates and the reason for stopping, as JSON values."""
        run = self.stats
        return {
            "seed": self.seed,
            "stopped": run.stopped,
            "slides": run.slides,
            "prefill_tokens": run.prefill_tokens,
            "prefill_s": run.prefill_s,
            "prefill_tokens_per_s": run.prefill_tokens / run.prefill_s if run.prefill_s else 0.0,
            "decode_tokens": run.decode_tokens,
            "decode_s": run.decode_s,
            "decode_tokens_per_s": run.decode_tokens / run.decode_s if run.decode_s else 0.0,
        }


def _written(tokens: TokenStream, ids: list[int], decoder: StreamDecoder | None, stop: StopText) -> Iterator[str]:
    """Yields the text of a generation in pieces, some of them empty; appends each token to `ids`."""
    for token in tokens:
        ids.append(token)
        yield stop.push(decoder.push(token) if decoder else f" {token}")
        if stop.found:
            break
    else:
        yield stop.push(decoder.flush() if decoder else "") + stop.flush()
    if stop.found:
        tokens.stats.stopped = "text"
