"""A stage of a split model that a server runs."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np

from glgpt.errors import GlgptError, quoted, written
from glgpt.inference.chunks import Rows
from glgpt.inference.stages.stage import Answer
from glgpt.models.part import Part
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.wire import hidden
from glgpt.wire.client import Connection, ForgottenError
from glgpt.wire.messages import MOST_GUESSES, Ask


class RemoteStage:
    """The part that a server holds: rows go there as bytes, and hidden states or tokens come back.

    Raises GlgptError where the server holds another model, or no part of it.
    """

    def __init__(self, connection: Connection, config: ModelConfig, wire: str = "f32") -> None:
        self.connection, self.config, self.wire = connection, config, wire
        said = connection.opened
        self.name = quoted(said.get("model", "a model"))
        if said.get("shape") != config.shape():
            raise GlgptError(f"{connection.url} holds another model ({self.name}); both sides must load the same one")
        self.part = Part.parse(str(said.get("holds")), config)

    def submit(self, pos: int, x: Rows, ask: Ask | None) -> None:
        """Sends rows pos..; the answer comes with `take`."""
        if ask and not self.part.head:  # who has no head only hears which rows are guesses
            ask = Ask(guesses=ask.guesses) if ask.guesses else None
        self.connection.submit(pos, len(x), self._bytes(x), ask)

    def _bytes(self, x: Rows) -> bytes:
        if self.part.embed:
            return np.asarray(x, "<u4").tobytes()
        return hidden.pack(np.asarray(x, np.float32), self.wire)

    def ready(self) -> bool:
        """Whether `take` will not wait."""
        return self.connection.ready()

    @property
    def pending(self) -> int:
        """Answers to come."""
        return self.connection.pending

    def abandon(self) -> None:
        """Leaves answers that nobody waits for any more, and the rows that it holds."""
        self.connection.abandon()

    def take(self) -> Answer:
        """The oldest answer. Raises GlgptError for one that is none, and `ForgottenError` (see `Connection`)."""
        header, payload = self.connection.take()
        rows, width = header.get("n"), self.config.n_embd
        answer = Answer(ms=float(header.get("ms", 0)))
        if not self.part.head:
            if not isinstance(rows, int) or rows < 1:
                raise GlgptError(f"{self.connection.url} answered without rows")
            answer.hidden = hidden.unpack(payload, rows, width, self.wire)
            return answer
        tokens, vocab = header.get("tokens", []), self.config.vocab_size
        if not _are_tokens(tokens, vocab) or len(tokens) > MOST_GUESSES + 1:
            raise GlgptError(f"{self.connection.url} answered with {written(tokens)}, which are no tokens")
        answer.tokens, answer.top = tokens, header.get("top", [])
        if payload:
            answer.logits = hidden.unpack(payload, 1, vocab, "f32")[0]
        return answer

    def look(self, x: Rows, names: tuple[str, ...]) -> tuple[Floats, dict[str, Floats]]:
        """Hidden states (or with the head logits) of all rows, and these activations in their natural shapes."""
        if self.pending:  # of a text that was interrupted
            self.abandon()
        while True:
            self.connection.look(len(x), names, self._bytes(x))
            with contextlib.suppress(ForgottenError):  # a look needs nothing of the session
                header, payload = self.connection.take()
                break
        arrays: dict[str, Floats] = {}
        values, at = np.frombuffer(payload, "<f4"), 0
        for name, shape in _listed(header.get("arrays")):
            count = int(np.prod(shape))
            if at + count > values.size:
                raise GlgptError(f"{self.connection.url} cut {quoted(name)} off")
            arrays[name] = values[at : at + count].reshape(shape)
            at += count
        end = "logits" if self.part.head else "hidden"
        if end not in arrays or not set(names) <= set(arrays):
            raise GlgptError(f"{self.connection.url} answered without {end}")
        return arrays[end], {name: arrays[name] for name in names}

    def close(self) -> None:
        """Ends the connection."""
        self.connection.close()


def _are_tokens(tokens: Any, vocab: int) -> bool:
    return isinstance(tokens, list) and all(isinstance(t, int) and 0 <= t < vocab for t in tokens)


def _listed(arrays: Any) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the arrays in an answer. Raises GlgptError for what is no such list."""
    found = []
    for item in arrays if isinstance(arrays, list) else []:
        name, shape = item if isinstance(item, list) and len(item) == 2 else (None, None)
        if not isinstance(name, str) or not re.fullmatch(r"[\w.]+", name) or not isinstance(shape, list):
            raise GlgptError("an answer that lists no arrays")
        found.append((name, tuple(int(n) for n in shape)))
    return found
