"""Runs a stage of a split model on a server."""

from __future__ import annotations

import contextlib
from math import prod

import numpy as np

from glgpt.errors import GlgptError, quoted
from glgpt.inference.chunks import Rows
from glgpt.inference.stages.stage import Answer
from glgpt.models.part import HIDDEN, Part
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.wire import hidden
from glgpt.wire.client import MAX_REPLAYS, Connection, ForgottenError
from glgpt.wire.messages import Ask, Looked, Stepped


class RemoteStage:
    """Sends rows, as bytes, to a server that runs a part of the model, and receives hidden states or tokens.

    A row is a token id or a hidden state; `wire` is the number format of hidden states. Raises GlgptError if the server
    holds another model, or a part that this model does not have.
    """

    def __init__(self, connection: Connection, config: ModelConfig, wire: str = "f32") -> None:
        self.connection, self.config, self.wire = connection, config, wire
        said = connection.opened
        self.name = quoted(said.model)
        if said.shape != config.shape():
            what = f"{connection.url} holds {self.name}, which has another shape than the model of this machine"
            raise GlgptError(f"{what}; use the same --model on both sides")
        self.part = Part.parse(said.holds, config)
        self.context = min(said.context or config.n_positions, config.n_positions)

    def submit(self, pos: int, x: Rows, ask: Ask | None) -> None:
        """Sends rows from `pos` on; `take` returns the answer."""
        if ask and not self.part.head:  # a server without the head draws no tokens; only guesses change what it runs
            ask = Ask(guesses=ask.guesses) if ask.guesses else None
        self.connection.submit(pos, len(x), self._bytes(x), ask)

    def _bytes(self, x: Rows) -> bytes:
        if self.part.embed:
            return np.asarray(x, "<u4").tobytes()
        return hidden.pack(np.asarray(x, np.float32), self.wire)

    def ready(self) -> bool:
        """True if `take` will not block."""
        return self.connection.ready()

    @property
    def pending(self) -> int:
        """Number of outstanding answers."""
        return self.connection.pending

    def abandon(self) -> None:
        """Discards the outstanding answers and the rows that the server holds."""
        self.connection.abandon()

    def take(self) -> Answer:
        """Returns the oldest answer. Raises GlgptError if it is invalid, and ForgottenError if the server lost rows."""
        said, payload = self.connection.take()
        if not isinstance(said, Stepped):
            raise GlgptError(f"{self.connection.url} answered a step with `{said.op}`")
        answer = Answer(ms=said.ms)
        if not self.part.head:
            answer.hidden = self._floats(payload, said.n, self.config.n_embd, self.wire)
            return answer
        vocab = self.config.vocab_size
        known = [*said.tokens, *(id_ for candidates in said.top for id_, *_ in candidates)]
        if any(id_ >= vocab for id_ in known):
            raise GlgptError(f"{self.connection.url} answered with {max(known)}, which is not a token id of this model")
        answer.tokens, answer.top = said.tokens, said.top
        if payload:
            answer.logits = self._floats(payload, 1, vocab, "f32")[0]
        return answer

    def _floats(self, payload: memoryview, rows: int, width: int, kind: str) -> Floats:
        """Returns an answer's payload as values. Raises GlgptError for a wrong length or a value that is not finite."""
        try:
            return hidden.unpack(payload, rows, width, kind)
        except GlgptError as error:
            raise GlgptError(f"{self.connection.url}: {error}") from None

    def look(self, x: Rows, names: tuple[str, ...]) -> tuple[Floats, dict[str, Floats]]:
        """Returns hidden states (with the head: logits) of all rows, and the named activations in natural shapes."""
        if self.pending:  # answers to an interrupted generation
            self.abandon()
        for _ in range(MAX_REPLAYS):
            self.connection.look(len(x), names, self._bytes(x))
            with contextlib.suppress(ForgottenError):  # `look` does not need the lost session, so it is sent again
                said, payload = self.connection.take()
                break
        else:
            raise GlgptError(f"{self.connection.url} lost the session {MAX_REPLAYS} times")
        if not isinstance(said, Looked) or len(payload) % 4:
            raise GlgptError(f"{self.connection.url} answered `look` with `{said.op}` of {len(payload)} bytes")
        arrays: dict[str, Floats] = {}
        values, at = np.frombuffer(payload, "<f4"), 0
        for name, shape in said.arrays:
            count = prod(shape)
            if at + count > values.size:
                raise GlgptError(f"{self.connection.url} sent {quoted(name)} incompletely")
            arrays[name] = values[at : at + count].reshape(shape)
            at += count
        end, width = ("logits", self.config.vocab_size) if self.part.head else (HIDDEN, self.config.n_embd)
        known = self.part.activations(self.config)
        shapes = {name: known[name].shape(len(x)) for name in names} | {end: (len(x), width)}
        for name, wanted in shapes.items():
            if name not in arrays or arrays[name].shape != wanted:
                raise GlgptError(f"{self.connection.url} answered without {name} {list(wanted)}")
        return arrays[end], {name: arrays[name] for name in names}

    def close(self) -> None:
        """Closes the connection."""
        self.connection.close()
