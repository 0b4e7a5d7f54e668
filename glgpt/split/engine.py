"""A part of a model in a thread of its own, the one in which its GL context is current."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from glgpt.checkpoint.digest import model_digest
from glgpt.checkpoint.opening import Checkpoint
from glgpt.errors import GlgptError
from glgpt.inference.stages.model import look
from glgpt.inference.stages.stage import Stage
from glgpt.models.part import Part
from glgpt.program.formats import Floats
from glgpt.split.sessions import Session, Sessions
from glgpt.wire import hidden
from glgpt.wire.messages import Look, Step, encode

T = TypeVar("T")
LOOK_BYTES = 64 << 20  # the most that one answer to a look may take


class Engine:
    """Loads a part of a checkpoint and runs the steps of its sessions one at a time, in the order they came.

    Raises GlgptError for a model, a part or a device that cannot be used.
    """

    def __init__(
        self,
        name_or_path: str | Path | None,
        blocks: str | None = None,
        dtype: str = "f32",
        *,
        sessions: int = 8,
        age: float = 600.0,
        **options: Any,
    ) -> None:
        self._thread = ThreadPoolExecutor(1, "glgpt-stage")
        self.queued = 0
        try:
            self._thread.submit(self._load, name_or_path, blocks, dtype, sessions, age, options).result()
        except BaseException:
            self._thread.shutdown()
            raise

    def _load(self, name: Any, blocks: str | None, dtype: str, most: int, age: float, options: dict[str, Any]) -> None:
        with Checkpoint.open(name) as checkpoint:
            self.config, self.name, self.digest = checkpoint.config, checkpoint.name, model_digest(checkpoint)
            self.part = Part.parse(blocks, self.config) if blocks else Part.whole(self.config)
            self.stage = Stage.load(checkpoint, self.part, dtype, **options)
        self.sessions = Sessions(self.stage, most, age)
        self._captures = self.stage.captures(options.get("max_texture_memory"))
        end = self.config.n_layer
        self._heads = self.stage.captures(options.get("max_texture_memory"), Part(end, end, False, True))

    async def run(self, work: Callable[[], T]) -> T:
        """Runs `work` in the engine's thread, after what waits there."""
        self.queued += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self.queued -= 1

    def describe(self) -> dict[str, Any]:
        """What a client must know."""
        return {
            "model": self.name,
            "digest": self.digest,
            "holds": str(self.part),
            "shape": self.config.shape(),
            "dtype": self.stage.dtype,
            "sizes": list(self.stage.sizes),
            "sessions": self.sessions.most,
        }

    @property
    def most_bytes(self) -> int:
        """The longest message that a client has reason to send: all rows of a context, and its JSON."""
        return self.config.n_positions * max(4 * self.config.n_embd, 4) + 65536

    def rows(self, payload: memoryview, n: int, wire: str) -> Any:
        """The ids or hidden states of a message. Raises GlgptError for another count, or what no model computes."""
        if not self.part.embed:
            return hidden.unpack(payload, n, self.config.n_embd, wire)
        if len(payload) != 4 * n:
            raise GlgptError(f"{n} ids take {4 * n} bytes; these are {len(payload)}")
        ids = np.frombuffer(payload, "<u4")
        if ids.size and int(ids.max()) >= self.config.vocab_size:
            raise GlgptError(f"id {int(ids.max())} is outside the vocabulary of {self.config.vocab_size}")
        return ids.tolist()

    def step(self, session: Session, step: Step, x: Any, wire: str, came: float) -> bytes:
        """The answer to a step, as the message to send. Raises GlgptError, and `LapsedError`."""
        if step.seq == session.seq and session.reply:
            return session.reply
        begun = time.perf_counter()
        answer = self.sessions.step(session, step.pos, x, step.ask)
        payload = b""
        if answer.hidden is not None:
            payload = hidden.pack(answer.hidden, wire)
        elif answer.logits is not None:
            payload = np.ascontiguousarray(answer.logits, "<f4").tobytes()
        end = time.perf_counter()
        header = {"op": "stepped", "seq": step.seq, "n": step.n, "ms": round(1000 * (end - begun), 3)}
        header["queue_ms"] = round(1000 * (begun - came), 3)
        if answer.tokens:
            header["tokens"] = answer.tokens
        if answer.top:
            header["top"] = [[[i, round(p, 6), round(d, 6)] for i, p, d in candidates] for candidates in answer.top]
        session.seq, session.reply = step.seq, encode(header, payload)
        return session.reply

    def look(self, look_: Look, x: Any) -> bytes:
        """The answer to a look. Raises GlgptError for a name that is not of this part, or too large an answer."""
        if look_.head and (not self.part.head or self.part.embed):
            raise GlgptError(f"this server holds {self.part}, which takes no states for the head alone")
        captures = self._heads if look_.head else self._captures
        known = captures.part.activations(self.config)
        for name in look_.names:
            if name not in known or name == captures.end:
                raise GlgptError(f"{name!r} is not an activation of {captures.part}")
        begun, n = time.perf_counter(), look_.n
        size = 4 * sum(
            known[name].heads * n * (n if known[name].kind in ("scores", "pattern") else known[name].width)
            for name in look_.names
        )
        if size > LOOK_BYTES:
            raise GlgptError(
                f"these activations take {size >> 20} MiB; one answer holds {LOOK_BYTES >> 20} MiB at most"
            )
        end, arrays = look(captures, x, look_.names)
        found: dict[str, Floats] = {**arrays, captures.end: end}
        header = {"op": "looked", "seq": look_.seq, "arrays": [[name, list(a.shape)] for name, a in found.items()]}
        header["ms"] = round(1000 * (time.perf_counter() - begun), 3)
        return encode(header, b"".join(np.ascontiguousarray(a, "<f4").tobytes() for a in found.values()))

    def close(self) -> None:
        """Ends the thread, after what waits there, and releases every GL object."""

        def release() -> None:
            self._captures.close()
            self._heads.close()
            self.sessions.close()
            self.stage.close()

        self._thread.submit(release).result()
        self._thread.shutdown()
