"""Runs a part (a range of blocks) of a model in a separate thread, in which the GL context is current.

A step runs rows of a session's text, which are ids or hidden states, through the part. A look requests activations.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from glgpt.checkpoint.digest import model_digest
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.inference.capture import Captures
from glgpt.inference.stages.batched_stage import BatchedStage
from glgpt.inference.stages.model import look
from glgpt.inference.stages.stage import Answer, Stage
from glgpt.models.activations import LOGITS
from glgpt.models.part import Part
from glgpt.models.spec import ModelConfig
from glgpt.program.formats import Floats
from glgpt.split.batching_executor import BatchingExecutor
from glgpt.split.sessions import Session, Sessions
from glgpt.wire import hidden
from glgpt.wire.messages import Look, Looked, Step, Stepped, encode

T = TypeVar("T")
# A client may use a sub-part, which has fewer blocks than the part that the server holds.
MAX_IDLE_PARTS = 4  # if more sub-parts than this are loaded, sub-parts that no session uses are unloaded
MAX_PARTS = 16  # maximum number of loaded sub-parts
# Maximum bytes of an answer to a look, including the logits or hidden states
MAX_CAPTURE_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class ServedPart:
    """A part of the model that clients can use: `texts` runs the sessions on it, and `captures` reads activations."""

    part: Part
    stage: Stage
    texts: BatchedStage
    captures: Captures

    def close(self) -> None:
        """Releases the part's GL objects."""
        self.captures.close()
        self.stage.close()


@dataclass(frozen=True, eq=False)
class StepRequest:
    """A step of a session. `x` are the rows of the step (ids or hidden states), and `came` is the time it arrived.

    `wire` is the number format of hidden states in messages.
    """

    session: Session
    step: Step
    x: Any
    wire: str
    came: float
    client: str = ""

    @property
    def repeated(self) -> bool:
        """True if this step repeats the session's last step, whose answer is stored."""
        return self.step.seq == self.session.seq and bool(self.session.reply)


def look_bytes(look_: Look, part: Part, config: ModelConfig) -> int:
    """Returns the size in bytes of the answer to a look.

    Raises GlgptError for a name that is not an activation of the part, or an answer that is too large.
    """
    known, n = part.activations(config), look_.n
    for name in look_.names:
        if name not in known or name == LOGITS:  # a client requests logits with the field `end`, not by name
            raise GlgptError(f"{name!r} is not an activation of {part}")
    end, width = ("logits", config.vocab_size) if part.head else ("hidden states", config.n_embd)
    size = 4 * (n * width * look_.end + sum(prod(known[name].shape(n)) for name in look_.names))
    if size > MAX_CAPTURE_BYTES:
        raise GlgptError(
            f"{f'the {end} and ' * look_.end}activations of {n} tokens take {size >> 20} MiB; "
            f"the maximum for one answer is {MAX_CAPTURE_BYTES >> 20} MiB; ask for fewer tokens"
        )
    return size


class EngineBase(ABC):
    """The interface that the application uses to run sessions of a part of a model, on one device or on many."""

    config: ModelConfig
    name: str
    digest: str
    part: Part
    dtype: str
    sizes: Sequence[int]
    most: int  # maximum number of sessions with caches

    @abstractmethod
    def takes(self) -> dict[str, int]:
        """Returns texture memory in bytes, by name: of the model, of each session, of caches that sessions share."""

    @abstractmethod
    def close(self) -> None:
        """Releases all resources."""

    @abstractmethod
    async def open(self, key: str | None, part: str | None, client: str = "") -> tuple[Session, Part]:
        """Returns the session with this key, or a new one, on `part`. Raises GlgptError for an unavailable part."""

    @abstractmethod
    async def step(self, request: StepRequest) -> bytes:
        """Returns the answer to a step, as a message.

        Raises GlgptError for an invalid step, and `LapsedError` if the session must be restarted.
        """

    @abstractmethod
    async def look(self, part: Part, look_: Look, x: Any, client: str = "") -> bytes:
        """Returns the answer to a look. Raises GlgptError for an unknown name or an answer that is too large."""

    def answer_bytes(self, part: Part, message: Step | Look) -> int:
        """Returns the maximum size in bytes of the answer. Raises GlgptError if a look cannot be answered."""
        if isinstance(message, Look):
            return look_bytes(message, Part.head_of(self.config) if message.head else part, self.config)
        return 4 * (self.config.vocab_size if part.head else message.n * self.config.n_embd)

    def describe(self, part: Part | None = None) -> dict[str, Any]:
        """Returns the properties of a part that a client needs (None: the engine's whole part)."""
        return {
            "model": self.name,
            "digest": self.digest,
            "holds": str(part or self.part),
            "shape": self.config.shape(),
            "context": self.config.context,
            "dtype": self.dtype,
            "sizes": list(self.sizes),
            "sessions": self.most,
        }

    def lacks(self, part: Part) -> str:
        """Returns the message for a client that requests a part that the engine does not hold."""
        needs = f"this server holds {self.part}, and the client requests {part}"
        return f"{needs}; request blocks that the server holds, or start it with --blocks {part}"

    @property
    def most_bytes(self) -> int:
        """Returns the maximum bytes of a client's message: a row for each position of the context, and the JSON."""
        return self.config.context * max(4 * self.config.n_embd, 4) + 65536

    def rows(self, part: Part, payload: memoryview, n: int, wire: str) -> Any:
        """Returns the rows in a payload: ids if the part has the embedding, else hidden states.

        Raises GlgptError for a wrong size or invalid values.
        """
        if not part.embed:
            return hidden.unpack(payload, n, self.config.n_embd, wire)
        if len(payload) != 4 * n:
            raise GlgptError(f"{n} ids take {4 * n} bytes, not {len(payload)}")
        ids = np.frombuffer(payload, "<u4")
        if ids.size and int(ids.max()) >= self.config.vocab_size:
            raise GlgptError(f"id {int(ids.max())} is outside the vocabulary of {self.config.vocab_size}")
        return ids.tolist()


class Engine(EngineBase):
    """Loads a part of a checkpoint and runs the steps of up to `sessions` sessions.

    A `BatchingExecutor` orders the steps and shares time fairly among clients. If steps of one row are waiting in
    several sessions, up to eight of these steps run in one forward pass (`BatchedStage`). Sessions that have been idle
    for `age` seconds are evicted (they lose their caches). `options` are those of `Stage.load`. Raises GlgptError for
    an unusable model, part or device.
    """

    def __init__(
        self,
        name_or_path: str | Path | None,
        blocks: str | None = None,
        dtype: str | None = None,
        *,
        sessions: int = 8,
        age: float = 600.0,
        **options: Any,
    ) -> None:
        self._turns = BatchingExecutor("glgpt-stage", self._together, lambda: self.sessions.side_by_side)
        try:
            self._turns.submit(lambda: self._load(name_or_path, blocks, dtype, sessions, age, options)).result()
        except BaseException:
            self._turns.close()
            raise

    def _load(
        self, name: Any, blocks: str | None, dtype: str | None, most: int, age: float, options: dict[str, Any]
    ) -> None:
        with Checkpoint.open(name) as checkpoint:
            self.config, self.name, self.digest = checkpoint.config, checkpoint.name, model_digest(checkpoint)
            self.part = Part.whole(self.config) if blocks is None else Part.parse(blocks, self.config)
            self.stage = Stage.load(checkpoint, self.part, dtype, **options)
        self.config = self.stage.config
        self.dtype, self.sizes = str(self.stage.formats), self.stage.sizes
        self._limit = options.get("max_texture_memory")
        self.most = self._affordable(most, self._limit)
        self.sessions = Sessions(self.most, age)
        self.whole = self._served(self.stage)
        self._narrowed: dict[Part, ServedPart] = {}  # least recently used first
        self._heads = self.stage.captures(self._limit, Part.head_of(self.config))

    def _affordable(self, wanted: int, limit: int | None) -> int:
        """Returns how many of the wanted sessions fit into `limit` bytes of textures, together with the model.

        Raises GlgptError if no session fits.
        """
        if limit is None:
            return wanted
        model, session = self.stage.texture_bytes, self.stage.session_bytes
        found = min(wanted, (limit - model) // session) if session else wanted
        if found < 1:
            mib = [f"{x / 2**20:.1f}" for x in (model, session, limit)]
            self.stage.close()
            raise GlgptError(
                f"the model takes {mib[0]} MiB of textures and a session {mib[1]} more, and --max-texture-memory is "
                f"{mib[2]} MiB; allow more, use --dtype f16, q8 or q4, or hold fewer --blocks"
            )
        return found

    def _taken(self) -> int:
        """Returns the bytes of all textures and of the caches that sessions may still create, in total."""
        reserved = self.most * self.stage.session_bytes - self.sessions.nbytes
        return self.stage.player.device.texture_bytes + reserved

    def _retried(self, work: Callable[[], T], keep: Part | None = None) -> T:
        """Runs `work`, which raises GlgptError if its textures exceed the limit.

        If `work` raises GlgptError, unloads the sub-parts that no session uses (except `keep`) and all textures for
        reading activations, and runs `work` again.
        """
        try:
            return work()
        except GlgptError:
            if self._limit is None:
                raise
            before = self._taken()
            for captures in (self._heads, *(served.captures for served in (self.whole, *self._narrowed.values()))):
                captures.close()
            for part in [p for p, served in self._narrowed.items() if not self.sessions.use(served.texts)]:
                if part != keep:
                    self._drop(self._narrowed.pop(part))
            if self._taken() == before:
                raise
        return work()

    def _served(self, stage: Stage) -> ServedPart:
        return ServedPart(
            stage.part, stage, BatchedStage(stage, self.sessions.most, self._limit), stage.captures(self._limit)
        )

    def _narrow(self, part: Part) -> Stage:
        return self.stage.narrowed(part, None if self._limit is None else self._limit - self._taken())

    def serve(self, part: str | None) -> ServedPart:
        """Returns the sub-part `part`, which uses the engine's weights. None stands for the engine's whole part.

        Must be called in the engine's thread. Raises GlgptError if the engine's part does not contain the sub-part, or
        if the sub-part's textures exceed the limit.
        """
        wanted = Part.parse(part, self.config) if part else self.part
        if wanted == self.part:
            return self.whole
        if not self.part.contains(wanted):
            raise GlgptError(self.lacks(wanted))
        found = self._narrowed.pop(wanted, None) or self._served(self._retried(lambda: self._narrow(wanted)))
        self._narrowed[wanted] = found
        for other in self._superfluous(wanted):
            self._drop(self._narrowed.pop(other))
        return found

    def _superfluous(self, wanted: Part) -> list[Part]:
        """Returns the sub-parts to unload after `wanted` was loaded.

        If more than `MAX_IDLE_PARTS` sub-parts are loaded, unloads sub-parts that no session uses. If sessions use more
        than `MAX_PARTS` sub-parts, unloads some of these too. In both cases, the least recently used ones come first.
        """
        idle = [p for p, served in self._narrowed.items() if p != wanted and not self.sessions.use(served.texts)]
        used = [p for p in self._narrowed if p != wanted and p not in idle]
        count = len(self._narrowed)
        return idle[: max(0, count - MAX_IDLE_PARTS)] + used[: max(0, 1 + len(used) - MAX_PARTS)]

    def _drop(self, served: ServedPart) -> None:
        self.sessions.drop(served.texts)
        served.close()

    def takes(self) -> dict[str, int]:
        """Returns texture memory in bytes, by name: of the model, of each session, of caches that sessions share."""
        whole = {"texture_bytes": self.stage.texture_bytes, "session_bytes": self.stage.session_bytes}
        return whole | {"shared_bytes": self.whole.texts.shared_bytes}

    async def open(self, key: str | None, part: str | None, client: str = "") -> tuple[Session, Part]:
        """Returns the session with this key, or a new one, on `part`.

        Does not wait for other clients' queued steps, unless the part must be loaded first.
        """
        wanted = Part.parse(part, self.config) if part else self.part

        def find() -> tuple[Session, Part]:
            served = self.serve(part)
            return self.sessions.find(key, served.texts, client), served.part

        return await self._turns.run(find, client, urgent=wanted == self.part or wanted in self._narrowed)

    async def step(self, request: StepRequest) -> bytes:
        """Queues a step and returns its answer as a message."""
        ask = request.step.ask
        if request.step.n == 1 and not (ask and ask.guesses):
            answer: bytes = await self._turns.join(request, request.session.key, request.session.texts, request.client)
            return answer
        return await self._turns.run(lambda: self._step(request), request.client)

    def _step(self, request: StepRequest) -> bytes:
        if request.repeated:
            return request.session.reply
        begun = time.perf_counter()
        return self._reply(
            request, self.sessions.step(request.session, request.step.pos, request.x, request.step.ask), begun
        )

    def _together(self, jobs: Sequence[StepRequest]) -> list[bytes | Exception]:
        """Runs one-row steps of several sessions in one forward pass. Returns an answer or an exception for each.

        If the joint forward pass fails, each step runs separately, so that a faulty step of one client does not affect
        the steps of other clients.
        """
        begun = time.perf_counter()
        new = [request for request in jobs if not request.repeated]
        answers: dict[StepRequest, Answer | GlgptError] = {}
        if len(new) > 1:
            self._share(new[0].session.texts)
            steps = [(request.session, request.step.pos, request.x, request.step.ask) for request in new]
            with contextlib.suppress(Exception):  # the separate steps below raise the error again
                answers = dict(zip(new, self.sessions.steps(steps), strict=True))

        def answer(request: StepRequest) -> bytes | Exception:
            try:
                found = answers.get(request)
                if found is None:
                    return self._step(request)
                return found if isinstance(found, GlgptError) else self._reply(request, found, begun)
            except Exception as error:  # returned instead of raised, because it affects only this session
                return error

        return [answer(request) for request in jobs]

    def _share(self, texts: BatchedStage) -> None:
        """Creates the shared caches of a part before its first joint forward pass, if the limit allows them."""

        def reserve() -> None:
            texts.others = self._taken() - texts.main.program.nbytes() - texts.nbytes
            texts.reserve(texts.rows)

        if self._limit is not None and texts.open and not texts.alone and not texts.shares:
            with contextlib.suppress(GlgptError):  # without shared caches, each session runs separately
                self._retried(reserve, texts.part)

    @staticmethod
    def _reply(request: StepRequest, answer: Answer, begun: float) -> bytes:
        payload, step = b"", request.step
        if answer.hidden is not None:
            payload = hidden.pack(answer.hidden, request.wire)
        elif answer.logits is not None:
            payload = np.ascontiguousarray(answer.logits, "<f4").tobytes()
        header = Stepped(
            seq=step.seq,
            n=step.n,
            ms=round(1000 * (time.perf_counter() - begun), 3),
            queue_ms=max(0.0, round(1000 * (begun - request.came), 3)),
            tokens=answer.tokens,
            top=[[(i, round(p, 6), round(d, 6)) for i, p, d in candidates] for candidates in answer.top],
        )
        request.session.seq, request.session.reply = step.seq, encode(header, payload)
        return request.session.reply

    async def look(self, part: Part, look_: Look, x: Any, client: str = "") -> bytes:
        """Queues a look and returns its answer.

        Raises GlgptError for an unknown name, an answer that is too large, or a part that cannot serve the look.
        """
        return await self._turns.run(lambda: self._look(part, look_, x), client)

    def _look(self, part: Part, look_: Look, x: Any) -> bytes:
        served = self.serve(str(part))
        if look_.head and (not served.part.head or served.part.embed):
            raise GlgptError(f"this server holds {served.part}; a look with `head` needs the head and no embedding")
        captures = self._heads if look_.head else served.captures
        look_bytes(look_, captures.part, self.config)  # raises if the look cannot be answered
        begun = time.perf_counter()

        def captured() -> tuple[Floats, dict[str, Floats]]:
            captures.others = self._taken() - captures.player.program.nbytes() - captures.nbytes
            return look(captures, x, look_.names)

        end, arrays = self._retried(captured, served.part)
        found: dict[str, Floats] = {**arrays, captures.end: end} if look_.end else arrays
        shapes = [(name, list(a.shape)) for name, a in found.items()]
        header = Looked(seq=look_.seq, arrays=shapes, ms=round(1000 * (time.perf_counter() - begun), 3))
        return encode(header, *(np.ascontiguousarray(a, "<f4").data for a in found.values()))

    def close(self) -> None:
        """Runs the queued jobs, ends the thread and releases all GL objects."""

        def release() -> None:
            self._heads.close()
            for served in (*self._narrowed.values(), self.whole):
                self._drop(served)

        try:
            self._turns.submit(release).result()
        finally:
            self._turns.close()
