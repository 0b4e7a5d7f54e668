"""Streaming a continuation: text as soon as it is certain, up to a stop text."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from glgpt.inference.decoder import Run
from glgpt.inference.model import GPT2
from glgpt.text.tokenizer import StreamDecoder


class StopText:
    """Passes a stream of text on until `stop` appears in it; a beginning of `stop` waits until it is certain."""

    def __init__(self, stop: str | None) -> None:
        self.stop, self.held, self.found = stop, "", False

    def push(self, text: str) -> str:
        """The text that may be shown now. Once `found`, nothing more."""
        if not self.stop:
            return text
        if self.found:
            return ""
        text, self.held = self.held + text, ""
        before, self.found = text.partition(self.stop)[0], self.stop in text
        if self.found:
            return before
        keep = next(n for n in range(min(len(self.stop) - 1, len(text)), -1, -1) if text.endswith(self.stop[:n]))
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What still waited when the stream ended."""
        text, self.held = self.held, ""
        return text


class Generation:
    """One continuation: iterate over it for the text; afterwards `figures()` says how it went.

    Without a tokenizer the text is the ids with a space before each. Without a seed, a new one is drawn.
    """

    def __init__(self, model: GPT2, ids: Sequence[int], tokens: int, seed: int | None, **sampling: Any) -> None:
        self.model, self.prompt_ids, self.ids = model, list(ids), list[int]()
        self.stop = StopText(sampling.pop("stop", None))
        self.seed = secrets.randbelow(2**32) if seed is None else seed
        self._run = Run()
        self._tokens = self._started(model.generate(self.prompt_ids, tokens, seed=self.seed, **sampling))

    def _started(self, tokens: Iterator[int]) -> Iterator[int]:
        """The tokens; `last_run` is this generation's when the first is there, and another's once that one starts."""
        first = next(tokens, None)
        self._run = self.model.last_run
        if first is not None:
            yield first
            yield from tokens

    def __iter__(self) -> Iterator[str]:
        tokenizer = self.model.tokenizer
        decoder = StreamDecoder(tokenizer) if tokenizer else None
        for token in self._tokens:
            self.ids.append(token)
            yield self.stop.push(decoder.push(token) if decoder else f" {token}")
            if self.stop.found:
                return
        yield self.stop.push(decoder.flush() if decoder else "") + self.stop.flush()

    def figures(self) -> dict[str, Any]:
        """Seed, tokens, seconds and rates, and why it stopped: tokens, eos, context or text."""
        run = self._run
        return {
            "seed": self.seed,
            "stopped": "text" if self.stop.found else run.stopped,
            "prefill_tokens": run.prefill_tokens,
            "prefill_s": run.prefill_s,
            "prefill_tokens_per_s": run.prefill_tokens / run.prefill_s if run.prefill_s else 0.0,
            "decode_tokens": run.decode_tokens,
            "decode_s": run.decode_s,
            "decode_tokens_per_s": run.decode_tokens / run.decode_s if run.decode_s else 0.0,
        }
