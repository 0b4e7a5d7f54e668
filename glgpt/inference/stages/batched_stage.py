"""Runs several texts on one stage, each with its own caches; runs texts together if each has one row to compute.

A row is a token id, or a hidden state, at one position; its keys and values are a row of the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glgpt.errors import GlgptError
from glgpt.gl.player import Player
from glgpt.inference.batching.batch import SPARE, Member, SharedCaches
from glgpt.inference.chunks import Rows
from glgpt.inference.sampling import NOT_FINITE, Sampler
from glgpt.inference.stages.stage import Answer, Stage, sampler_of, weighed
from glgpt.ops import MAX_ROWS
from glgpt.wire.messages import Ask


@dataclass(eq=False)
class SessionCache(Member):
    """The keys and values of a text, in its own caches and in the shared caches.

    The text's own caches, those of `stage`, hold its first `own` rows; the shared caches hold its first `len(rows)`
    rows. Prefills use the text's own caches. Steps that run together with other texts use the shared caches. Rows are
    copied between the text's own caches and the shared caches as needed.
    """

    stage: Stage | None = None
    own: int = 0

    @property
    def held(self) -> int:
        """Number of rows that the text has."""
        return max(self.own, len(self.rows))


@dataclass(frozen=True)
class StepInput:
    """Rows of a text from position `pos` on, and the request for the tokens after them."""

    caches: SessionCache
    pos: int
    x: Rows
    ask: Ask | None = None

    @property
    def may_join(self) -> bool:
        """True if this step may run together with rows of other texts: it has a single row and no guesses."""
        return len(self.x) == 1 and not (self.ask and self.ask.guesses)


class BatchedStage(SharedCaches[SessionCache]):
    """Runs rows of up to `texts` texts on a stage: any number of rows of one text, or one row of each of several texts.

    The shared caches are allocated when two texts first have a row at the same time. If the shared caches would exceed
    the limit of `most` bytes of textures, the texts run one after another.
    """

    def __init__(self, stage: Stage, texts: int, most: int | None = None) -> None:
        super().__init__(stage.player, stage.config, stage.kernel, stage.formats, most, stage.part)
        self.stage, self.texts = stage, texts
        self._bridges: dict[SessionCache, Player] = {}
        self.alone = texts == 1
        self.passes = 0  # number of steps that ran rows of several texts together

    @property
    def open(self) -> bool:
        """True until the stage is closed."""
        return bool(self.main.textures)

    @property
    def shares(self) -> bool:
        """True while the shared caches are allocated."""
        return self._player is not None

    @property
    def rows(self) -> int:
        """Number of rows to reserve in the shared caches; `height` rounds this number up."""
        return min(self.most_rows, min(self.texts, MAX_ROWS) * self.config.context + SPARE)

    @property
    def shared_bytes(self) -> int:
        """Texture memory in bytes that the shared caches take once allocated; 0 if they are never allocated."""
        return 0 if self.alone else self.stage.session_bytes // self.config.context * self.height(self.rows)

    def caches(self) -> SessionCache:
        """Returns caches for another text."""
        return SessionCache(stage=self.stage.session())

    def answer(self, fed: StepInput) -> Answer:
        """Runs rows of one text. Raises GlgptError as `Stage.answer` does; the rows must then be fed again."""
        caches, n = fed.caches, len(fed.x)
        assert caches.stage
        self._back(caches, fed.pos)
        if fed.may_join and len(caches.rows) > caches.own:
            found = self.answers([fed])[0]
            if isinstance(found, GlgptError):
                raise found
            return found
        self._restore(caches)
        answer = caches.stage.answer(fed.pos, fed.x, fed.ask)
        caches.own = fed.pos + (len(answer.tokens) if fed.ask and fed.ask.guesses and answer.tokens else n)
        return answer

    def answers(self, steps: Sequence[StepInput]) -> list[Answer | GlgptError]:
        """Runs one row of each of up to eight different texts; the results equal those of `answer` bit for bit.

        If one text fails, its result is the error.
        """
        if (len(steps) == 1 and not steps[0].caches.rows) or not self._reserved():
            return [self._alone(fed) for fed in steps]
        for fed in steps:
            self._back(fed.caches, fed.pos)
        self.step([fed.caches for fed in steps], self._rows_of(steps))
        self.passes += len(steps) > 1
        if not self.part.head:
            return [Answer(hidden=row[None]) for row in self.hidden()]
        if not any(fed.ask for fed in steps):
            return [Answer() for _ in steps]
        asks = [fed.ask or Ask() for fed in steps]
        samplers = [sampler_of(ask) for ask in asks]
        tokens = self.choose(samplers, [ask.draw for ask in asks])
        logits = self.logits() if any(ask.alternatives or ask.logits for ask in asks) else None
        return [
            self._chosen(fed.ask, samplers[i], tokens[i], None if logits is None else logits[i])
            for i, fed in enumerate(steps)
        ]

    def _rows_of(self, steps: Sequence[StepInput]) -> Any:
        """Returns the rows of all steps in one list or matrix."""
        if self.part.embed:
            return [int(fed.x[0]) for fed in steps]
        return np.concatenate([np.asarray(fed.x, np.float32) for fed in steps])

    @staticmethod
    def _chosen(ask: Ask | None, sampler: Sampler, token: int | None, logits: Any) -> Answer | GlgptError:
        if ask is None:
            return Answer()
        if token is None:
            return GlgptError(NOT_FINITE)
        top = [weighed(logits, sampler, token, ask.alternatives)] if ask.alternatives else []
        return Answer(tokens=[token], top=top, logits=logits if ask.logits else None)

    def _alone(self, fed: StepInput) -> Answer | GlgptError:
        try:
            return self.answer(fed)
        except GlgptError as error:
            return error

    def _reserved(self) -> bool:
        """Allocates the shared caches; returns False if texts run one at a time, as when memory does not suffice."""
        if not self.alone:
            try:
                self.reserve(self.rows)
            except GlgptError:
                self.alone = True
        return not self.alone

    # -- caches -------------------------------------------------------------------------------------------------

    def release(self, caches: SessionCache) -> None:
        """Releases the caches of a text that has ended."""
        self.forget(caches)
        if bridge := self._bridges.pop(caches, None):
            bridge.close()
        if caches.stage:
            caches.stage.close()

    def forget(self, caches: SessionCache) -> None:
        """Discards all rows of these caches."""
        self._back(caches, 0)

    def _back(self, caches: SessionCache, pos: int) -> None:
        """Discards the rows from `pos` on."""
        caches.own = min(caches.own, pos)
        if len(caches.rows) > pos:
            self.cut(caches, pos)

    def refill(self, text: SessionCache, keep: Sequence[SessionCache]) -> None:
        """Copies the rows that only the text's own caches hold to the shared caches."""
        if len(text.rows) < text.own:
            self.adopt([text], text.own, keep, self._bridge(text))

    def lose(self, text: SessionCache) -> None:
        """Copies the rows that only the shared caches hold to the text's own caches."""
        self._restore(text)

    def _restore(self, text: SessionCache) -> None:
        for position in range(text.own, len(text.rows)):
            self._bridge(text).play("restore_1", pos=text.rows[position], row=position)
        text.own = text.held

    def _bridge(self, text: SessionCache) -> Player:
        """Returns a player that copies rows between the shared caches and the text's own caches."""
        if text not in self._bridges:
            assert text.stage
            textures = text.stage.player.textures
            self._bridges[text] = self.player.fork(given={name: textures[name] for name in self.stage.caches})
        return self._bridges[text]

    def close(self) -> None:
        """Copies all rows to the texts' own caches, which must still be open, and releases the shared caches."""
        super().close()
        for bridge in self._bridges.values():
            bridge.close()
        self._bridges.clear()
