"""Runs the rounds of a site (a gateway with its members).

Pulls each round from Flower, offers the round to the members, and sends the members' updates to Flower.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

from glgpt.errors import quoted
from glgpt.federation.gateway.sockets import Sockets, without_devices
from glgpt.federation.rounds.rounds import Rounds
from glgpt.federation.rounds.updates import RunOver
from glgpt.federation.session import ENDED, ROUNDS, Files

T = TypeVar("T")
logger = logging.getLogger(__name__)

DEADLINE_INTERVAL_S = 0.2  # seconds between two checks of the round's deadlines
PULL_INTERVAL_S = 0.5  # seconds between two requests for a round
HEARTBEAT_INTERVAL_S = 20.0  # seconds between two heartbeats to SuperLink
# Seconds for which a gateway waits for the last round's validation; then it reports the end of the session
VALIDATION_TIMEOUT_S = 120.0


class SuperLinkError(Exception):
    """Raised if a call to SuperLink fails; the gateway retries it."""


class SiteLike(Protocol):
    """The Flower operations that the gateway needs, as in `flower.site.Site`."""

    def connect(self) -> int: ...  # noqa: D102
    def heartbeat(self) -> Any: ...  # noqa: D102
    def pull(self) -> Any: ...  # noqa: D102
    def answer(self, task: bytes, arrays: Any, metrics: Any) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


class Gateway:
    """Runs the rounds of one site in background tasks, and serves the sockets of the site's members."""

    def __init__(self, files: Files, site: SiteLike, origins: tuple[str, ...] = ()) -> None:
        self.files, self.site = files, site
        self.invitations = files.invitations()
        self.rounds = Rounds(files, self.invitations)
        self.session = self.rounds.session
        self.sockets = Sockets(files, self.rounds, origins)
        self.failed = False
        self.on_failure: Callable[[], None] = lambda: None  # called when a background task has failed
        self._wake = asyncio.Event()
        self._turning = asyncio.Lock()  # held while a round is opened, and while a round is closed and recorded
        self._noted = 0.0
        self._done_at = 0.0

    @contextlib.asynccontextmanager
    async def running(self, _app: Any = None) -> AsyncIterator[None]:
        """Runs rounds until the context exits."""
        tasks = [asyncio.create_task(self._vital(work)) for work in (self._flower, self._clock, self._news)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.sockets.close()
            self.site.close()

    async def _vital(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs a task that the session needs. If it fails, ends this process, which `glgpt federate serve` restarts."""
        try:
            await work()
        except Exception:
            logger.critical("%s failed; the gateway ends", work.__name__.strip("_"), exc_info=True)
            self.failed = True
            self.on_failure()

    async def _flower(self) -> None:
        """Pulls rounds from Flower and answers them. Reconnects after an error of SuperLink, Flower's server."""
        connected, beat = False, 0.0
        while True:
            try:
                if not connected:
                    await self._superlink(self.site.connect)
                    connected = True
                if time.monotonic() - beat > HEARTBEAT_INTERVAL_S:
                    await self._superlink(self.site.heartbeat)
                    beat = time.monotonic()
                await self._answer()
                task = await self._superlink(self.site.pull)
                if task is not None:
                    await self._begin(task)
                    continue
            except (SuperLinkError, OSError) as error:  # OSError: such as a full disk
                logger.info("%s", quoted(error, 300))
                connected, beat = False, 0.0
                await asyncio.sleep(2 * PULL_INTERVAL_S)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), PULL_INTERVAL_S)
            self._wake.clear()

    async def _superlink(self, call: Callable[..., T], *args: Any) -> T:
        """Calls SuperLink in a thread. Raises RunOver if `call` does, and SuperLinkError for all other exceptions."""
        try:
            return await asyncio.to_thread(call, *args)
        except RunOver:
            raise
        except Exception as error:  # Flower's client has no common exception class
            raise SuperLinkError(f"SuperLink: {type(error).__name__}: {error}") from error

    async def _begin(self, task: Any) -> None:
        try:
            number = int(task.config["round"])
            parameters = task.arrays["parameters"]
            if parameters.shape != (self.session.parameters,):
                raise ValueError(f"it has parameters of shape {parameters.shape}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            logger.error("a task of SuperLink is not a round: %s", quoted(error, 300))
            return
        if number <= self.files.round_of():  # the round is finished; it was requested before this gateway restarted
            return
        async with self._turning:
            attempt = int(task.config.get("attempt", 0))
            round_ = await asyncio.to_thread(self.rounds.asked_for, task.message, number, parameters, attempt)
            if round_ is not self.rounds.open:
                logger.info("round %d is open", number)
                self.rounds.open = round_
                self.sockets.begin_round()  # at once: during the next `await`, clients may send frames
            await asyncio.to_thread(self.rounds.keep_open)
        self.sockets.offer_all()

    async def _answer(self) -> None:
        round_ = self.rounds.open
        if round_ is None or not round_.settled or round_.task == b"":
            return
        reply = await asyncio.to_thread(self.rounds.reply)
        with contextlib.suppress(RunOver):
            await self._superlink(self.site.answer, reply.task, {"updates": reply.updates}, reply.metrics)
        if round_.task == reply.task:
            round_.task = b""  # the task is answered; if Flower requests the round again, it sends a new task
        logger.info("round %d is answered", round_.number)

    async def _clock(self) -> None:
        paused = False
        while True:
            await asyncio.sleep(DEADLINE_INTERVAL_S)
            try:
                paused, before = self.files.paused, paused
                if before and not paused:
                    self.sockets.offer_all()
                async with self._turning:
                    await self._tick()
            except OSError as error:  # such as a full disk
                logger.error("the round cannot be closed: %s", error)
                await asyncio.sleep(10 * DEADLINE_INTERVAL_S)

    async def _tick(self) -> None:
        """Shortly before the round closes, requests the clients' results so far. Records a closed round on disk.

        If recording fails, the next call tries again.
        """
        due, round_ = self.rounds.tick(), self.rounds.open
        if due == "wrap_up" and round_ is not None:
            self.sockets.broadcast({"type": "wrap_up", "attempt": round_.id})
        elif round_ is not None and round_.closed and not round_.settled:
            self.sockets.discard_uploads()
            if round_.updates:
                await asyncio.to_thread(self.files.note, self.rounds.figures())
            await asyncio.to_thread(self.rounds.settle)
            self._wake.set()

    async def _news(self) -> None:
        """Once a second, sends the clients the session's state, and the last two rounds if `rounds.jsonl` has changed.

        Also notifies the clients when the session has ended.
        """
        while True:
            await asyncio.sleep(1)
            try:
                await self._report()
            except OSError as error:  # such as no free file descriptor
                logger.error("the clients cannot be updated: %s", error)

    async def _report(self) -> None:
        path = self.files.folder / ROUNDS
        changed = path.stat().st_mtime if path.exists() else 0.0
        if changed != self._noted:
            notes = await asyncio.to_thread(self.files.notes)
            self._noted = changed
            self.sockets.broadcast({"type": "figures", "rounds": [without_devices(note) for note in notes[-2:]]})
        self.sockets.broadcast_state()
        ended = (self.files.folder / ENDED).exists()
        if not self.sockets.ended and (ended or await asyncio.to_thread(self._all_done)):
            self.sockets.end("the host ended the session" if ended else "all rounds are done")

    def _all_done(self) -> bool:
        """True if the last round is done and validated, or has been done for `VALIDATION_TIMEOUT_S` seconds."""
        if self.files.round_of() < self.session.rounds:
            return False
        self._done_at = self._done_at or time.monotonic()
        judged = any(note["round"] == self.session.rounds and "step" in note for note in self.files.notes())
        return judged or time.monotonic() - self._done_at > VALIDATION_TIMEOUT_S
