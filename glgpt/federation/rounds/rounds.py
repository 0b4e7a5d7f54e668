"""Manages the open round of a site (a gateway with its members): updates, the time to close, the reply to Flower."""

from __future__ import annotations

import base64
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from glgpt.errors import GlgptError, quoted
from glgpt.federation import protocol, rules
from glgpt.federation.aggregation import strategies
from glgpt.federation.invitations import Invitations
from glgpt.federation.protocol import Update, Vector
from glgpt.federation.replies import MemberStatus, PrivacyBudget, RoundMessage, RoundStatus, SessionStatus
from glgpt.federation.rounds.members import Member, Members
from glgpt.federation.rounds.updates import SPOOLED, OpenRound, Rejected, Reply, Spooled
from glgpt.federation.session import Files, Session, append_line, json_lines, weights_id, write_synced

# Maximum bytes of separate updates in a reply. If the updates are larger, the reply holds only their combination.
MAX_HELD_BYTES = 256 << 20
# In a site's folder: the file of the open round, the folder of its updates, and the folder of damaged updates
OPEN, SPOOL, QUARANTINE = "open.safetensors", "spool", "quarantine"
logger = logging.getLogger(__name__)


class Rounds:
    """Holds the members of a site and manages its open round."""

    def __init__(self, files: Files, invitations: Invitations, clock: Callable[[], float] = time.monotonic) -> None:
        self.files, self.invitations, self.clock = files, invitations, clock
        self.session: Session = files.session()
        self.open: OpenRound | None = None
        self.members = Members(files, invitations, lambda: self.open, clock)
        self.most_held = MAX_HELD_BYTES
        self._attended = -math.inf  # the last time at which a connected device owed an update (`_pending`)
        self.quorum = -(-self.session.quorum // self.session.gateways)  # this site's share, rounded up
        self.spool = files.site_folder / SPOOL
        self.spool.mkdir(parents=True, exist_ok=True)
        self._restore()

    def asked_for(self, task: bytes, number: int, parameters: Vector, attempt: int = 0) -> OpenRound:
        """Returns the round that Flower requests with `task`: the open round if it is requested again, or a new one.

        If all gateways together missed the quorum, Flower requests the round again with a higher `attempt`. The
        returned round then retains the updates of the open round and accepts further updates.
        """
        name = weights_id(number, parameters)
        # The open round, if it starts from the same weights
        before = self.open if self.open is not None and self.open.id == name else None
        if before is not None and attempt <= before.attempt:
            before.task = task
            return before
        round_ = self._round(number, parameters, task)
        round_.attempt = attempt
        if before is not None:
            round_.updates, round_.had = before.updates, len(before.updates)
        (self.spool / f"{name}.closed").unlink(missing_ok=True)
        return round_

    def _round(self, number: int, parameters: Vector, task: bytes) -> OpenRound:
        now, name = self.clock(), weights_id(number, parameters)
        limits = self.session.norm_limits(number, parameters, self.files.notes())
        return OpenRound(number, name, parameters, limits, task, now, now + self.session.round_seconds)

    def keep_open(self) -> None:
        """Writes the open round to disk and deletes the updates of other rounds."""
        assert self.open is not None
        text = {"number": str(self.open.number), "task": base64.b64encode(self.open.task).decode()}
        text |= {"attempt": str(self.open.attempt), "had": str(self.open.had)}
        write_synced(self.files.site_folder / OPEN, save({"parameters": self.open.parameters}, text))
        for old in self.spool.iterdir():
            if not old.name.startswith(f"{self.open.id}."):
                old.unlink()

    def settle(self) -> None:
        """Records on disk that the open round is closed, so that its reply cannot change any more."""
        assert self.open is not None and self.open.closed
        write_synced(self.spool / f"{self.open.id}.closed", b"")
        self.open.settled = True

    def _restore(self) -> None:
        path = self.files.site_folder / OPEN
        if not path.exists():
            return
        with safe_open(path, framework="numpy") as file:
            parameters, text = file.get_tensor("parameters"), file.metadata()
        number = int(text["number"])
        if self.files.round_of() >= number:  # Flower has received the reply
            return
        self.open = self._round(number, parameters, base64.b64decode(text["task"]))
        self.open.attempt, self.open.had = int(text["attempt"]), int(text["had"])
        self.open.closed = self.open.settled = (self.spool / f"{self.open.id}.closed").exists()
        self._restore_updates(self.open)
        self._check_quorum()

    def _restore_updates(self, round_: OpenRound) -> None:
        """Reads a restored round's accepted updates from the spool folder, and quarantines those that are invalid.

        If a damaged file stayed in the spool folder, the round would fail after every restart. If a closed round
        misses its quorum without the quarantined updates, it is opened again.
        """
        lines, bounds, unsound = self.spool / f"{round_.id}.jsonl", self.session.bounds, False
        for line in json_lines(lines):
            try:
                spooled = SPOOLED.validate_python({**line, "file": self.spool / Path(str(line["file"])).name})
                spooled.check(bounds, round_.limits, len(round_.parameters))
                round_.updates[spooled.member] = spooled
            except (KeyError, OSError, TypeError, ValueError) as error:
                unsound = True
                self._quarantine(line, error)
        if unsound:
            left = "".join(f"{spooled.line()}\n" for spooled in round_.updates.values())
            write_synced(lines, left.encode())
        if unsound and round_.closed and not self._enough(round_):
            round_.closed = round_.settled = False
            (self.spool / f"{round_.id}.closed").unlink(missing_ok=True)

    def _quarantine(self, line: Any, error: Exception) -> None:
        """Moves the file of a spooled update to the quarantine folder."""
        name = Path(str(line.get("file"))).name if isinstance(line, dict) else ""
        folder = self.files.site_folder / QUARANTINE
        if (self.spool / name).is_file():
            folder.mkdir(exist_ok=True)
            (self.spool / name).replace(folder / name)
        logger.error("moved an invalid update from the spool to %s: %s", quoted(folder / name, 300), quoted(error, 300))

    def offer(self, member: Member) -> RoundMessage | None:
        """Returns the `round` message for a member, or None if the member has nothing to train now."""
        round_ = self.open
        if round_ is None or round_.closed or self.files.paused or member.aside or member.number in round_.updates:
            return None
        member.offered, member.step = round_.id, 0
        s = self.session
        shard = (0, 1) if member.own_text else (rules.shard_of(member.number, round_.number, s.shards), s.shards)
        return {
            "type": "round",
            "round": round_.number,
            "attempt": round_.id,
            "steps": s.local_steps,
            "step": s.first_step(round_.number),
            "lr": s.rates(round_.number),
            "seconds_left": max(0.0, self._closes(round_) - self.clock()),
            "seed": rules.client_seed(s.settings.seed, member.number),
            "shard": shard,
            "dtype": s.dtype,
            "bytes": round_.parameters.nbytes,
        }

    def check(self, member: Member, update: Update) -> None:
        """Raises Rejected if the announcement of an update shows that the update cannot be accepted."""
        round_ = self.open
        if not self.members.seated(member):
            raise Rejected("this device lost its place to another device")
        if member.aside:
            raise Rejected(f"set aside: {member.aside}")
        if round_ is None or round_.closed or update.attempt != round_.id or update.round != round_.number:
            raise Rejected("stale: it started from the weights of another round", stale=True)
        if member.number in round_.updates:
            raise Rejected("this device has already sent an update for this round", stale=True)
        if update.dtype != self.session.dtype:
            raise self.members.strike(member, f"the session's dtype is {self.session.dtype}, not {update.dtype}")
        if update.bytes != protocol.encoded_size(update.dtype, len(round_.parameters)):
            size = f"{update.bytes} bytes is the wrong size for {len(round_.parameters)} values"
            raise self.members.strike(member, size)
        try:
            rules.check_claims(update, self.session.bounds)
        except GlgptError as error:
            raise self.members.strike(member, str(error)) from None

    def decoded(self, update: Update, data: bytes, before: Vector) -> tuple[Vector, float]:
        """Returns the parameters after an update and the norm of their change from `before`.

        Safe to call in another thread. Raises GlgptError for a wrong size, and for values that are not finite.
        """
        after = protocol.decode(update.dtype, data, update.scale, before)
        return after, rules.norm(after - before)

    def accept(self, member: Member, update: Update, after: Vector, norm: float) -> None:
        """Accepts an update with the results of `decoded`. The update is on disk when this returns.

        Raises Rejected if `check` rejects the update, or the norm is too large.
        """
        self.check(member, update)
        round_ = self.open
        assert round_ is not None
        try:
            round_.limits.check(norm, update.steps)
        except GlgptError as error:
            raise self.members.strike(member, str(error)) from None
        file = self.spool / f"{round_.id}.{member.number}.f32"
        write_synced(file, after.astype("<f4").tobytes())
        spooled = Spooled(member.number, update.tokens, update.steps, update.loss, norm, file)
        append_line(self.spool / f"{round_.id}.jsonl", spooled.line())
        round_.updates[member.number] = spooled
        member.accepted += 1
        member.strikes = 0
        member.loss, member.norm, member.step, member.said = update.loss, norm, update.steps, "accepted"
        self.members.keep(member)
        self._check_quorum()

    def _check_quorum(self) -> None:
        round_ = self.open
        if round_ and round_.quorum_at is None and self._enough(round_):
            round_.quorum_at = self.clock()

    def _closes(self, round_: OpenRound) -> float:
        """Returns the time at which the round closes if it has its quorum.

        The round closes earlier if it has its quorum and all connected clients have answered.
        """
        if round_.quorum_at is None:
            return round_.deadline
        return min(round_.deadline, round_.quorum_at + self.session.grace)

    def tick(self) -> str:
        """Returns the next action: "wrap_up" (clients should send their results so far), "close" (the round), or ""."""
        round_ = self.open
        if round_ is None or round_.closed:
            return ""
        now, enough = self.clock(), self._enough(round_)
        if self._pending(round_):
            self._attended = now
        if self.files.paused:
            round_.deadline = max(round_.deadline, now + self.session.round_seconds)
            return ""
        complete = enough and (now >= self._closes(round_) or not self._pending(round_))
        if complete or (self.session.gateways > 1 and self._gives_up(round_, now)):
            round_.closed = True
            return "close"
        if now >= round_.deadline:  # without the quorum, the deadline is extended and received updates are retained
            round_.deadline = now + self.session.round_seconds
            round_.wrapped_up = False
        if not round_.wrapped_up and now >= self._closes(round_) - self.session.grace / 2:
            round_.wrapped_up = True
            return "wrap_up"
        return ""

    def _enough(self, round_: OpenRound) -> bool:
        """True if the round has its quorum and, in a new attempt, more updates than in the previous one."""
        return len(round_.updates) >= max(self.quorum, round_.had + 1)

    def _gives_up(self, round_: OpenRound, now: float) -> bool:
        """True if other gateways should not wait for this one.

        This is the case if the round's deadline has passed, or if no connected device has owed an update during the
        last `grace` seconds.
        """
        if now >= round_.deadline:
            return True
        return now - max(self._attended, round_.opened) >= self.session.grace

    def _pending(self, round_: OpenRound) -> list[Member]:
        """Returns the connected members that were offered the round and have not sent an update that was accepted."""
        return [
            m
            for m in self.members.values()
            if m.connections and not m.aside and m.offered == round_.id and m.number not in round_.updates
        ]

    def reply(self) -> Reply:
        """Returns the reply to a closed round: the clients' parameters.

        The changes are clipped in public sessions, and in sessions that add noise. If the parameters would take more
        than `most_held` bytes, the reply holds only one vector: if the session compares updates, the result of the
        function that `strategies.comparison` returns, otherwise the mean. In the mean, clients are weighted by tokens,
        or equally if noise is added.
        """
        round_ = self.open
        assert round_ is not None and round_.closed
        spooled = sorted(round_.updates.values(), key=lambda s: s.member)
        public = self.session.public
        factors = rules.clip_factors([s.norm for s in spooled]) if public else [1.0] * len(spooled)
        if self.session.dp_noise:  # clips here, because Flower cannot clip a client's change if it receives only a mean
            most = self.session.dp_clip
            factors = [min(f, most / s.norm) if s.norm > most else f for f, s in zip(factors, spooled, strict=True)]
        for one, factor in zip(spooled, factors, strict=True):
            if factor < 1 and one.member in self.members:
                self.members[one.member].said = f"clipped to {factor:.2f}"
        if not spooled:
            none = np.zeros((0, len(round_.parameters)), np.float32)
            return Reply(round_.task, none, {"tokens": [], "loss": [], "clients": 0})
        clipped = list(zip(spooled, factors, strict=True))
        tokens = [float(s.tokens) for s in spooled]
        if len(spooled) * round_.parameters.nbytes > self.most_held:
            total = sum(tokens)
            loss = sum(s.loss * s.tokens for s in spooled) / total
            metrics: dict[str, list[float] | int] = {"tokens": [total], "loss": [loss], "clients": len(spooled)}
            return Reply(round_.task, self._combined(clipped)[None], metrics)
        rows = [self._clipped(one, factor) for one, factor in clipped]
        losses = [s.loss for s in spooled]
        return Reply(round_.task, np.stack(rows), {"tokens": tokens, "loss": losses, "clients": len(spooled)})

    def _combined(self, clipped: list[tuple[Spooled, float]]) -> Vector:
        """Combines updates without holding all of them in memory.

        Each update is paired with the factor by which its change is multiplied.
        """
        assert self.open is not None
        before, session = self.open.parameters, self.session
        if compare := strategies.comparison(session.strategy, session):
            # `rows` takes at most a quarter of `most_held` bytes, because `compare` copies it
            found, count = np.empty_like(before), max(1, self.most_held // (16 * len(clipped)))
            for first in range(0, len(before), count):
                rows = [self._clipped(one, factor, first, count) for one, factor in clipped]
                found[first : first + count] = compare(np.stack(rows))
            return found
        weights = [1.0 if session.dp_noise else float(one.tokens) for one, _ in clipped]
        mean, total = np.zeros(len(before)), sum(weights)
        for (one, factor), weight in zip(clipped, weights, strict=True):
            mean += self._clipped(one, factor) * (weight / total)
        return mean.astype(np.float32)

    def _clipped(self, one: Spooled, factor: float, first: int = 0, count: int = -1) -> Vector:
        """Returns `count` parameters of a client (-1: all) from `first` on, with the change multiplied by `factor`."""
        after = one.after(first, count)
        if factor == 1:
            return after
        assert self.open is not None
        before = self.open.parameters[first : first + len(after)]
        return np.asarray(before + (after - before) * np.float32(factor), np.float32)

    def figures(self) -> dict[str, Any]:
        """Returns the line for `rounds.jsonl` about the closed round, which must have updates."""
        round_ = self.open
        assert round_ is not None
        updates = list(round_.updates.values())
        total = sum(u.tokens for u in updates)
        devices = [
            {"member": u.member, "name": self.members[u.member].name, "tokens": u.tokens, "steps": u.steps}
            | {"loss": u.loss, "norm": u.norm, "said": self.members[u.member].said}
            for u in updates
            if u.member in self.members
        ]
        return {
            "round": round_.number,
            "clients": len(updates),
            "tokens": total,
            "loss": sum(u.loss * u.tokens for u in updates) / total,
            "seconds": round(self.clock() - round_.opened, 3),
            "streamed": len(updates) * round_.parameters.nbytes > self.most_held,
            "devices": devices,
            "site": self.files.site,
            **self._privacy(round_.number),
        }

    def _privacy(self, rounds: int) -> PrivacyBudget:
        """Returns the privacy budget that `rounds` rounds and all undone rounds spend, or {} if no noise is added."""
        if not (noise := self.session.dp_noise):
            return {}
        spent = rules.epsilon(noise, rounds + self.files.undone_rounds())
        return {"epsilon": round(spent, 4), "delta": rules.DELTA}

    def _in_round(self, member: Member) -> dict[str, Any]:
        """Returns a member's step in the open round (0 before the offer), and whether its update was accepted."""
        round_ = self.open
        if round_ is None:
            return {"step": 0, "answered": False}
        return {
            "step": member.step if member.offered == round_.id else 0,
            "answered": member.number in round_.updates,
        }

    def status(self) -> SessionStatus:
        """Returns the current state, for the dashboard."""
        s, round_ = self.session, self.open
        return {
            "session": s.id,
            "name": s.name,
            "rounds": s.rounds,
            "local_steps": s.local_steps,
            "done": self.files.round_of(),
            "paused": self.files.paused,
            "quorum": self.quorum,
            "combined_by": strategies.description(s.strategy, s),
            "parameters": s.parameters,
            **self._privacy(self.files.round_of()),
            "round": self._round_status(round_) if round_ is not None else None,
            "members": [cast("MemberStatus", m.shown() | self._in_round(m)) for m in self.members.values()],
        }

    def _round_status(self, round_: OpenRound) -> RoundStatus:
        return {
            "number": round_.number,
            "closed": round_.closed,
            "answers": len(round_.updates),
            "seconds_left": round(max(0.0, self._closes(round_) - self.clock()), 1),
            "asked": sum(1 for m in self.members.values() if m.offered == round_.id),
        }
