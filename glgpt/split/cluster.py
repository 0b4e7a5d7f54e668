"""Contains everything that depends on Ray (`glgpt[cluster]`): each range of blocks is a Ray Serve deployment.

The WebSocket application runs where the command was started, and uses a chain of deployments instead of one engine. In
each deployment, a consistent hash of a session's key selects the replica (a process) that holds the session's caches.
If another replica must take over, it reports that it lacks the session's rows, and the client sends its text again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.config import RequestRouterConfig
from ray.serve.exceptions import RayServeException

from glgpt.checkpoint.digest import model_digest
from glgpt.checkpoint.opening import Checkpoint
from glgpt.checkpoint.stored_weights import default_dtype
from glgpt.errors import ArgumentError, GlgptError, quoted
from glgpt.models.context import DEFAULT_CONTEXT
from glgpt.models.part import Part, checked_chain
from glgpt.models.spec import ModelConfig
from glgpt.split.engine import Engine, EngineBase, StepRequest, look_bytes
from glgpt.split.sessions import LapsedError, Session
from glgpt.system.signals import NUMBERS
from glgpt.wire import hidden
from glgpt.wire.messages import (
    BAD,
    ORDER,
    Ask,
    Look,
    Looked,
    Said,
    Step,
    Stepped,
    decode_answer,
    decode_request,
    encode,
)

ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
MAX_RUNNING_STEPS = 1000  # maximum number of steps that Ray passes to a replica at once; the replica queues them
REPLICA = {"num_cpus": 0.1}  # resources that Ray reserves per replica; it does not reserve OpenGL devices
START_TIMEOUT_S = 600.0  # seconds within which the replicas must have loaded

Sent = tuple[str, str, bytes]  # error code, error message, answer. Ray cannot transport this package's exceptions


class Replica:
    """Runs a stage (a range of blocks) in a separate process. The `RayEngine` assigns the keys of the sessions."""

    def __init__(self, name: str, part: str, dtype: str, options: dict[str, Any]) -> None:
        self.engine = Engine(name, part, dtype, **options)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._most = 4 * self.engine.most

    def about(self) -> tuple[dict[str, int], tuple[int, ...]]:
        """Returns the stage's texture memory in bytes, by name, and the numbers of rows that it can run at once."""
        return self.engine.takes(), tuple(self.engine.sizes)

    def _session(self, key: str) -> Session:
        """Returns the session with this key, or a new one."""
        session = self._sessions.pop(key, None) or Session(self.engine.whole.texts)
        self._sessions[key] = session
        while len(self._sessions) > self._most:
            self._sessions.popitem(last=False)
        return session

    async def step(self, key: str, step: bytes, wire: str, client: str) -> Sent:
        """Runs `step`, an encoded `Step`. Returns the encoded answer, or an error."""
        message, payload = decode_request(step)
        assert isinstance(message, Step), "the RayEngine sends only steps here"
        session = self._session(key)
        try:
            if not session.evicted and message.pos > session.held:
                raise LapsedError(
                    ORDER, f"a step starts at row {message.pos}, but the session holds {session.held} rows"
                )
            x = self.engine.rows(self.engine.part, payload, message.n, wire)
            return "", "", await self.engine.step(StepRequest(session, message, x, wire, time.perf_counter(), client))
        except LapsedError as error:
            self._sessions.pop(key, None)
            return error.code, str(error), b""
        except GlgptError as error:
            return BAD, str(error), b""

    async def look(self, look: bytes, wire: str, client: str) -> Sent:
        """Answers `look`, an encoded `Look` (a request for activations). Returns the encoded answer, or an error."""
        message, payload = decode_request(look)
        assert isinstance(message, Look), "the RayEngine sends only looks here"
        try:
            x = self.engine.rows(self.engine.part, payload, message.n, wire)
            return "", "", await self.engine.look(self.engine.part, message, x, client)
        except GlgptError as error:
            return BAD, str(error), b""


def ranges(part: Part, stages: int, config: ModelConfig) -> list[Part]:
    """Splits a part into `stages` ranges of about equal size. Raises ArgumentError if the part has fewer blocks."""
    count = len(part.blocks)
    if not 1 <= stages <= count:
        raise ArgumentError(f"--stages {stages} is out of range: {part} has {count} blocks")
    ends = [part.first + round(i * count / stages) for i in range(stages + 1)]
    return [Part(a, b, part.embed and i == 0, part.head and i == stages - 1) for i, (a, b) in enumerate(pairwise(ends))]


class RayEngine(EngineBase):
    """Runs the sessions of a part whose ranges of blocks are Ray Serve deployments.

    There are `stages` ranges, and `replicas` processes for each range. If this process does not use Ray yet, joins the
    cluster that the environment variable RAY_ADDRESS names; if RAY_ADDRESS is not set, starts a cluster on this
    machine. `options` are those of `Engine`; every node must have the model's files at the same path. Raises GlgptError
    if the model cannot be loaded, the cluster is unreachable, or the replicas do not start.
    """

    def __init__(
        self,
        name_or_path: str | Path | None,
        blocks: str | None = None,
        dtype: str | None = None,
        *,
        stages: int = 1,
        replicas: int = 1,
        **options: Any,
    ) -> None:
        with Checkpoint.open(name_or_path) as checkpoint:
            self.config, self.name, self.digest = checkpoint.config, checkpoint.name, model_digest(checkpoint)
            path, self.dtype = str(checkpoint.path), dtype or default_dtype(checkpoint)
        options["context"] = options.get("context") or min(self.config.n_positions, DEFAULT_CONTEXT)
        self.config = self.config.with_context(options["context"])
        self.part = Part.whole(self.config) if blocks is None else Part.parse(blocks, self.config)
        self.parts = ranges(self.part, stages, self.config)
        if self.part == Part.whole(self.config):
            checked_chain(self.parts, self.config)
        self.most = replicas * int(options.get("sessions", 8))
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._application = f"glgpt-{secrets.token_hex(4)}"
        self._handles: list[Any] = []
        self._started = not ray.is_initialized()
        options.pop("progress", None)
        try:
            self._begin(path, replicas, options)
            about = [handle.about.remote().result(timeout_s=START_TIMEOUT_S) for handle in self._handles]
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):  # Ray also raises built-in exceptions
                said = str(error).strip().splitlines() or [type(error).__name__]
                raise GlgptError(f"Ray: {quoted(said[-1], 300)}") from None
            raise
        self.sizes = about[0][1]
        self._takes = {name: sum(found[name] for found, _ in about) for name in about[0][0]}

    def _begin(self, path: str, replicas: int, options: dict[str, Any]) -> None:
        if self._started:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            where: dict[str, Any] = {} if "RAY_ADDRESS" in os.environ else {"_node_ip_address": "127.0.0.1"}
            with _signals_kept():
                ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR", **where)
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR", "enable_access_log": False})
        for i, part in enumerate(self.parts):
            deployment = serve.deployment(
                name=f"stage-{i}",
                num_replicas=replicas,
                max_ongoing_requests=MAX_RUNNING_STEPS,
                ray_actor_options=REPLICA,
                request_router_config=RequestRouterConfig(request_router_class=ROUTER),
            )(Replica)
            bound = deployment.bind(path, str(part), self.dtype, options)
            self._handles.append(serve.run(bound, name=f"{self._application}-{i}", route_prefix=None))

    def takes(self) -> dict[str, int]:
        """Returns texture memory in bytes, by name: the sum over all stages, counting one replica of each stage."""
        return self._takes

    async def open(self, key: str | None, part: str | None, client: str = "") -> tuple[Session, Part]:
        """Returns the session with this key, or a new one. Raises GlgptError if `part` is not the engine's part."""
        wanted = Part.parse(part, self.config) if part else self.part
        if wanted != self.part:
            raise GlgptError(self.lacks(wanted))
        session = self._sessions.pop(key or "", None) or Session()
        self._sessions[session.key] = session
        while len(self._sessions) > 4 * self.most:
            self._sessions.popitem(last=False)
        return session, self.part

    async def step(self, request: StepRequest) -> bytes:
        """Runs a step's rows through all stages. Returns the answer as a message.

        Raises LapsedError if the session lacks rows before the step's first row.
        """
        if request.repeated:
            return request.session.reply
        session, step, x = request.session, request.step, request.x
        if step.pos > session.held:
            raise LapsedError(ORDER, f"a step starts at row {step.pos}, but the session holds {session.held} rows")
        begun = time.perf_counter()
        session.held = step.pos  # if a stage fails, the session holds no rows of this step
        said: Said | None = None
        for i, handle in enumerate(self._handles):
            last = i == len(self._handles) - 1
            message = step.model_copy(update={"ask": step.ask if last else _hint(step.ask)})
            sticky = handle.options(session_id=session.key)
            data = _taken(
                await self._call(sticky.step, session.key, encode(message, _packed(x)), "f32", request.client)
            )
            said, payload = decode_answer(data)
            if not self.parts[i].head:
                x = hidden.unpack(payload, step.n, self.config.n_embd, "f32")
        assert isinstance(said, Stepped), "a stage answers a step with `stepped`"
        guessed = step.ask and step.ask.guesses and said.tokens
        session.held = step.pos + (len(said.tokens) if guessed else step.n)
        ms = round(1000 * (time.perf_counter() - begun), 3)
        header = said.model_copy(update={"ms": ms, "queue_ms": max(0.0, round(1000 * (begun - request.came), 3))})
        payload = payload if self.part.head else memoryview(hidden.pack(x, request.wire))
        session.seq, session.reply = step.seq, encode(header, bytes(payload))
        return session.reply

    async def look(self, part: Part, look_: Look, x: Any, client: str = "") -> bytes:
        """Answers a request for activations. Each stage returns the activations of its blocks."""
        arrays: list[tuple[str, list[int]]] = []
        values, begun = b"", time.perf_counter()
        look_bytes(look_, part, self.config)  # raises if the look cannot be answered
        chain = list(zip(self.parts, self._handles, strict=True))
        for i, (own, handle) in enumerate(chain[-1:] if look_.head else chain):
            names = tuple(name for name in look_.names if name in own.activations(self.config))
            last = look_.head or i == len(chain) - 1
            message = look_.model_copy(update={"names": names, "end": look_.end or not last})
            sent = encode(message, _packed(x))
            said, payload = decode_answer(_taken(await self._call(handle.look, sent, "f32", client)))
            assert isinstance(said, Looked), "a stage answers a look with `looked`"
            at = 0
            for name, shape in said.arrays:
                size = 4 * int(np.prod(shape))
                if name == "hidden" and not last:
                    x = hidden.unpack(payload[at : at + size], look_.n, self.config.n_embd, "f32")
                else:
                    arrays.append((name, shape))
                    values += payload[at : at + size]
                at += size
        ms = round(1000 * (time.perf_counter() - begun), 3)
        return encode(Looked(seq=look_.seq, arrays=arrays, ms=ms), values)

    @staticmethod
    async def _call(method: Any, *arguments: Any) -> Sent:
        """Calls a replica. Raises GlgptError if the call fails in the replica.

        Raises LapsedError if the replica is lost; the session then restarts on another replica.
        """
        try:
            found: Sent = await method.remote(*arguments)
            return found
        except RayTaskError as error:
            raise GlgptError(f"a replica failed: {quoted(str(error.cause), 300)}") from None
        except (RayError, RayServeException) as error:
            raise LapsedError(ORDER, f"a replica was lost: {type(error).__name__}") from None

    def close(self) -> None:
        """Deletes the deployments, and stops Ray if this object started it."""
        if not ray.is_initialized():
            return
        with _signals_kept(hold=True):
            for i in range(len(self._handles)):
                serve.delete(f"{self._application}-{i}")
            self._handles.clear()
            if self._started:
                serve.shutdown()
                ray.shutdown()


def _packed(x: Any) -> bytes:
    """Returns ids or hidden states as the bytes that a stage reads."""
    return np.asarray(x, "<u4").tobytes() if isinstance(x, list) else hidden.pack(x, "f32")


def _hint(ask: Ask | None) -> Ask | None:
    """Returns the request for every stage but the last: only the guesses of `ask`, or None if it has none."""
    return Ask(guesses=ask.guesses) if ask and ask.guesses else None


def _taken(sent: Sent) -> bytes:
    code, message, data = sent
    if code == BAD:
        raise GlgptError(message)
    if code:
        raise LapsedError(code, message)
    return data


@contextlib.contextmanager
def _signals_kept(hold: bool = False) -> Iterator[None]:
    """Restores the signal handlers at the end of the context, because Ray replaces them.

    With `hold`, also blocks the signals within the context. Do not start processes in such a context: the signals would
    be blocked in these processes too.
    """
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in NUMBERS if here}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS if hold else ())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
