"""The rounds of one site: the members, the open round, its updates, and when it closes.

It is independent of sockets and of Flower: a clock supplies the time, and one thread makes all calls. Members and
accepted updates are written to disk before they are confirmed, so that a killed gateway loses nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import os
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter
from safetensors import safe_open
from safetensors.numpy import save

from glgpt.errors import GlgptError, quoted
from glgpt.federation import protocol, rules
from glgpt.federation.aggregation import strategies
from glgpt.federation.invitations import Invitations, digest
from glgpt.federation.protocol import Join, Update, Vector
from glgpt.federation.session import Files, Session, json_lines, weights_id, write_synced

MAX_HELD_BYTES = 256 << 20  # bytes of a round's updates; above it, the site replies with their clipped mean
OPEN, MEMBERS, SPOOL, QUARANTINE = "open.safetensors", "members.jsonl", "spool", "quarantine"
MAX_REASON_CHARACTERS = 200  # maximum characters of a reason that is shown to all
REMOVED, REVOKED = "removed", "the invitation was revoked"  # reasons that bar a member from connecting
IDLE_ROUNDS = 3  # rounds without an update after which a new member's seat may be reassigned
ABSENCE_TIMEOUT_S = 3600.0  # seconds offline after which the seat of a member that trained may be reassigned
MEMBER_LINES = 1000  # lines of members.jsonl beyond one per member after which it is rewritten
logger = logging.getLogger(__name__)


class Refused(Exception):  # noqa: N818, not a programming error
    """Raised to refuse a client; `code` is the close code of its socket."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Rejected(Exception):  # noqa: N818
    """Raised to reject an update. If it is `stale`, for another round, it does not count against the member."""

    def __init__(self, why: str, stale: bool = False) -> None:
        super().__init__(why)
        self.stale = stale


class RunOver(Exception):  # noqa: N818
    """Raised if Flower's run has ended: its round's result is not needed, and the next run requests it again."""


@dataclass
class Member:
    """A client that joined. Its number identifies its seat and never changes."""

    number: int
    key: str  # SHA-256 of its resume key
    name: str
    device: str
    kind: str
    own_text: bool
    strikes: int = 0
    aside: str = ""  # reason the member is set aside; "" if it is not
    accepted: int = 0  # number of accepted updates
    invitation: str = ""  # SHA-256 of the token it last joined with
    # shown only, not stored
    connections: int = 0
    step: int = 0
    loss: float | None = None
    norm: float | None = None
    tokens_per_s: float = 0.0
    ping_ms: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    said: str = ""  # outcome of its last update
    offered: str = ""  # id of the last round offered to it
    since: int = 0  # round in which it joined
    seen: float = 0.0  # time of its last connection, by the clock of `Rounds`

    KEPT = ("number", "key", "name", "device", "kind", "own_text", "strikes", "aside", "accepted", "invitation")
    HIDDEN = ("key", "offered", "invitation", "since", "seen")

    @property
    def barred(self) -> bool:
        """True if it may not connect."""
        return self.aside in (REMOVED, REVOKED)

    def kept(self) -> dict[str, Any]:
        """Returns the fields that are stored on disk."""
        return {name: getattr(self, name) for name in self.KEPT}

    def shown(self) -> dict[str, Any]:
        """Returns the fields that the dashboard and other members see."""
        return {k: v for k, v in asdict(self).items() if k not in self.HIDDEN}


@dataclass(frozen=True)
class Spooled:
    """An accepted update, stored in the spool folder."""

    member: int
    tokens: int
    steps: int
    loss: float
    norm: float
    file: Path

    def after(self) -> Vector:
        """Returns the client's parameters after its steps."""
        return np.fromfile(self.file, "<f4").astype(np.float32, copy=False)

    def check(self, bounds: rules.Bounds, limits: rules.NormLimits, count: int) -> None:
        """Raises GlgptError or OSError if the update cannot be combined with others of `count` values."""
        rules.check_claims(self, bounds)
        limits.check(self.norm, self.steps)
        values = self.after()
        if len(values) != count or not np.isfinite(values).all():
            raise GlgptError(f"{self.file.name} does not hold {count} finite values")


_SPOOLED = TypeAdapter(Spooled)


@dataclass
class OpenRound:
    """A round that is being trained, or a closed one whose reply Flower has not received yet."""

    number: int
    id: str
    parameters: Vector
    limits: rules.NormLimits
    task: bytes
    opened: float
    deadline: float
    quorum_at: float | None = None
    closed: bool = False
    settled: bool = False  # closed on disk: it can be answered, and a restart does not reopen it
    wrapped_up: bool = False
    updates: dict[int, Spooled] = field(default_factory=dict)
    attempt: int = 0  # number of times all gateways together missed the quorum
    had: int = 0  # number of updates at the end of the previous attempt


@dataclass(frozen=True)
class Reply:
    """A site's reply to a round: row i of `updates` [k, n] holds client i's parameters after the round."""

    task: bytes
    updates: NDArray[np.float32]
    metrics: dict[str, list[float] | int]


class Rounds:
    """Manages the members and the open round of a site."""

    def __init__(self, files: Files, invitations: Invitations, clock: Callable[[], float] = time.monotonic) -> None:
        self.files, self.invitations, self.clock = files, invitations, clock
        self.session: Session = files.session()
        self.members: dict[int, Member] = {}
        self.open: OpenRound | None = None
        self.most_held = MAX_HELD_BYTES
        self._attended = -math.inf  # when a device last worked on a round
        self.quorum = -(-self.session.quorum // self.session.gateways)  # this site's share
        self.spool = files.site_folder / SPOOL
        self.spool.mkdir(parents=True, exist_ok=True)
        self._removed: set[str] = set()  # keys of removed members, whose seats others may take
        self._lines = 0  # number of lines in members.jsonl
        self._restore_members()
        self._restore()

    # -- members ----------------------------------------------------------------------------------------------------

    def _restore_members(self) -> None:
        for line in json_lines(self.files.site_folder / MEMBERS):
            member = Member(**line)
            if member.aside == REMOVED:
                self._removed.add(member.key)
            member.seen = self.clock()
            self.members[member.number] = member
        self._write_members()

    def admit(self, join: Join) -> tuple[Member, str]:
        """Admits a new member, or one known by its resume key. Returns it and its key. Raises Refused."""
        known = self._by_key(join.resume) if join.resume else None
        if join.resume and _hash(join.resume) in self._removed:
            raise Refused(protocol.REMOVED, "the host removed this device")
        try:
            self.invitations.check(join.token)
        except GlgptError as error:
            raise Refused(protocol.NO_TOKEN, str(error)) from None
        if join.digest != self.session.digest:
            raise Refused(protocol.NO_TOKEN, "another program: this client would train another model than the session")
        if join.tokenizer != self.session.tokenizer:
            raise Refused(protocol.NO_TOKEN, "another tokenizer: this client's token ids differ from the session's")
        if known is not None:
            self._resume(known, join)
            return known, join.resume
        number = self._seat()
        self._use(join.token)
        before = self.members.get(number)
        if before is not None and not before.aside:
            self.invitations.give_back(before.invitation)
        key = secrets.token_urlsafe(24)
        name = join.name or f"{join.kind} {number + 1}"
        member = Member(number, _hash(key), name, join.device, join.kind, join.own_text)
        member.invitation, member.since, member.seen = digest(join.token), self._number(), self.clock()
        self.members[number] = member
        self._keep(member)
        return member, key

    def _resume(self, known: Member, join: Join) -> None:
        """Admits a known member, also with another invitation. Raises Refused if that invitation has no uses left."""
        before = known.kept()
        if known.invitation != digest(join.token):
            if known.invitation:
                self._use(join.token)
            known.invitation = digest(join.token)
            if known.aside == REVOKED:
                known.aside = _struck_out(known.strikes, known.said)
        known.name, known.device = join.name or known.name, join.device or known.device
        if known.kept() != before:
            self._keep(known)

    def _use(self, token: str) -> None:
        try:
            self.invitations.use(token)
        except GlgptError as error:
            raise Refused(protocol.NO_TOKEN, str(error)) from None

    def _number(self) -> int:
        """Returns the number of the current round."""
        return self.open.number if self.open is not None else self.files.round_of() + 1

    def _seat(self) -> int:
        """Returns a number for a new member: a free one, or one taken from another member. Raises Refused."""
        numbers = range(self.files.site, self._seats(), self.session.gateways)
        for number in numbers:
            if number not in self.members:
                return number
        giving = [(rank, m.seen, m.number) for m in self.members.values() if (rank := self._gives_way(m)) is not None]
        if not giving:
            raise Refused(protocol.FULL, f"the session is full: it has {len(self.members)} members")
        return min(giving)[2]

    def _seats(self) -> int:
        return min(self.session.members * self.session.gateways, self.session.shards)

    def _gives_way(self, member: Member) -> int | None:
        """Returns the priority for reassigning a member's seat (0: first), or None if it keeps its seat.

        The order is: members that are set aside, members offline that never trained, connected members without an
        update for `IDLE_ROUNDS` rounds, members that trained and have been offline for `ABSENCE_TIMEOUT_S` seconds.
        """
        if member.number >= self._seats() or (self.open is not None and member.number in self.open.updates):
            return None  # an update under this number counts in the open round
        if member.aside:
            return 0
        if not member.connections:
            if not member.accepted:
                return 1
            return 3 if self.clock() - member.seen >= ABSENCE_TIMEOUT_S else None
        idle = not member.accepted and self._number() - member.since >= IDLE_ROUNDS
        return 2 if idle else None

    def seated(self, member: Member) -> bool:
        """True unless the member's seat was given to another."""
        return self.members.get(member.number) is member

    def connected(self, member: Member) -> None:
        """Counts a new connection of a member."""
        member.connections += 1

    def disconnected(self, member: Member) -> None:
        """Counts a closed connection of a member."""
        member.connections -= 1
        member.seen = self.clock()

    def revoke(self, token_digest: str) -> list[Member] | None:
        """Revokes an invitation. Sets its members aside and returns them; returns None if it is unknown."""
        if not self.invitations.revoke(token_digest):
            return None
        found = [m for m in self.members.values() if m.invitation == token_digest and m.aside != REMOVED]
        for member in found:
            member.aside = REVOKED
            self._keep(member)
        return found

    def _by_key(self, key: str) -> Member | None:
        wanted = _hash(key)
        return next((m for m in self.members.values() if secrets.compare_digest(m.key, wanted)), None)

    def knows(self, key: str) -> bool:
        """True if a resume key belongs to a member that may connect."""
        found = self._by_key(key)
        return found is not None and not found.barred

    def remove(self, number: int) -> bool:
        """Removes a member permanently. Returns False if there is none."""
        member = self.members.get(number)
        if member is None:
            return False
        member.aside = REMOVED
        self._removed.add(member.key)
        self._keep(member)
        return True

    def _keep(self, member: Member) -> None:
        with (self.files.site_folder / MEMBERS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(member.kept()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._lines += 1
        if self._lines > MEMBER_LINES + len(self.members) + len(self._removed):
            self._write_members()

    def _write_members(self) -> None:
        """Rewrites members.jsonl with one line per member; removed members come first."""
        removed = [line for line in json_lines(self.files.site_folder / MEMBERS) if line["aside"] == REMOVED]
        lines = {line["key"]: line for line in removed} | {m.key: m.kept() for m in self.members.values()}
        write_synced(
            self.files.site_folder / MEMBERS, "".join(json.dumps(line) + "\n" for line in lines.values()).encode()
        )
        self._lines = len(lines)

    # -- the open round ---------------------------------------------------------------------------------------------

    def asked_for(self, task: bytes, number: int, parameters: Vector, attempt: int = 0) -> OpenRound:
        """Returns the round to open next, or the open one with its updates if it is requested again.

        A new `attempt` means that all gateways together missed the quorum. The round then accepts further updates and
        retains those that it has.
        """
        name = weights_id(number, parameters)
        before = self.open if self.open is not None and self.open.id == name else None  # same weights
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
        limits = rules.NormLimits(rules.norm(parameters), rules.recent_norms(self.files.notes(), number))
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
        self.open.attempt, self.open.had = int(text.get("attempt", 0)), int(text.get("had", 0))
        self.open.closed = self.open.settled = (self.spool / f"{self.open.id}.closed").exists()
        self._restore_updates(self.open)
        self._check_quorum()

    def _restore_updates(self, round_: OpenRound) -> None:
        """Reads the accepted updates of a restored round, and moves those that cannot be combined out of the spool.

        If a damaged file stayed, the round would fail after every restart. A closed round that then misses its quorum
        accepts updates again.
        """
        lines, bounds, unsound = self.spool / f"{round_.id}.jsonl", self.session.bounds, False
        for line in json_lines(lines):
            try:
                spooled = _SPOOLED.validate_python({**line, "file": self.spool / Path(str(line["file"])).name})
                spooled.check(bounds, round_.limits, len(round_.parameters))
                round_.updates[spooled.member] = spooled
            except (KeyError, OSError, TypeError, ValueError) as error:
                unsound = True
                self._quarantine(line, error)
        if unsound:
            left = "".join(_line(spooled) for spooled in round_.updates.values())
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

    def offer(self, member: Member) -> dict[str, Any] | None:
        """Returns the `round` message for a member, or None if it has nothing to train now."""
        round_ = self.open
        if round_ is None or round_.closed or self.files.paused or member.aside or member.number in round_.updates:
            return None
        member.offered, member.step = round_.id, 0
        s = self.session
        shard = [0, 1] if member.own_text else [rules.shard_of(member.number, round_.number, s.shards), s.shards]
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
        """Raises Rejected if an announced update cannot count, before its bytes are sent."""
        round_ = self.open
        if not self.seated(member):
            raise Rejected("this device lost its place to another one")
        if member.aside:
            raise Rejected(f"set aside: {member.aside}")
        if round_ is None or round_.closed or update.attempt != round_.id or update.round != round_.number:
            raise Rejected("stale: it started from the weights of another round", stale=True)
        if member.number in round_.updates:
            raise Rejected("this device has already sent an update for this round", stale=True)
        if update.dtype != self.session.dtype:
            raise self._strike(member, f"the session's dtype is {self.session.dtype}, not {update.dtype}")
        if update.bytes != protocol.encoded_size(update.dtype, len(round_.parameters)):
            raise self._strike(member, f"{update.bytes} bytes is the wrong size for {len(round_.parameters)} values")
        try:
            rules.check_claims(update, self.session.bounds)
        except GlgptError as error:
            raise self._strike(member, str(error)) from None

    def decoded(self, update: Update, data: bytes, before: Vector) -> tuple[Vector, float]:
        """Returns the parameters of an update and the norm of their change. Safe to call in another thread.

        Raises GlgptError for values that are not finite.
        """
        after = protocol.decode(update.dtype, data, update.scale, before)
        return after, rules.norm(after - before)

    def accept(self, member: Member, update: Update, after: Vector, norm: float) -> None:
        """Accepts a checked and decoded update. It is on disk when this returns. Raises Rejected."""
        self.check(member, update)
        round_ = self.open
        assert round_ is not None
        try:
            round_.limits.check(norm, update.steps)
        except GlgptError as error:
            raise self._strike(member, str(error)) from None
        file = self.spool / f"{round_.id}.{member.number}.f32"
        write_synced(file, after.astype("<f4").tobytes())
        spooled = Spooled(member.number, update.tokens, update.steps, update.loss, norm, file)
        with (self.spool / f"{round_.id}.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(_line(spooled))
            lines.flush()
            os.fsync(lines.fileno())
        round_.updates[member.number] = spooled
        member.accepted += 1
        member.strikes = 0
        member.loss, member.norm, member.step, member.said = update.loss, norm, update.steps, "accepted"
        self._keep(member)
        self._check_quorum()

    def faulty(self, member: Member, why: str) -> Rejected:
        """Counts an update that could not be decoded against the member. Returns the error to report."""
        return self._strike(member, why)

    def _strike(self, member: Member, why: str) -> Rejected:
        why = quoted(why, MAX_REASON_CHARACTERS)
        member.strikes += 1
        member.said = f"rejected: {why}"
        member.aside = _struck_out(member.strikes, why)
        self._keep(member)
        return Rejected(why)

    def _check_quorum(self) -> None:
        round_ = self.open
        if round_ and round_.quorum_at is None and self._enough(round_):
            round_.quorum_at = self.clock()

    def _closes(self, round_: OpenRound) -> float:
        """Returns the time at which the round closes, as currently known."""
        if round_.quorum_at is None:
            return round_.deadline
        return min(round_.deadline, round_.quorum_at + self.session.grace)

    def tick(self) -> str:
        """Returns the next action: `wrap_up` (clients should send their results so far), `close` or ""."""
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
        if now >= round_.deadline:  # below the quorum: received updates are kept
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
        """True if other gateways should not wait for this one: past its deadline, or no device is training."""
        if now >= round_.deadline:
            return True
        return now - max(self._attended, round_.opened) >= self.session.grace

    def _pending(self, round_: OpenRound) -> list[Member]:
        """Returns connected members that were offered the round and have not answered."""
        return [
            m
            for m in self.members.values()
            if m.connections and not m.aside and m.offered == round_.id and m.number not in round_.updates
        ]

    def reply(self) -> Reply:
        """Returns the reply of a closed round: the clients' parameters, clipped in public sessions.

        Above `most_held` bytes the reply holds only their mean, weighted by tokens.
        """
        round_ = self.open
        assert round_ is not None and round_.closed
        spooled = sorted(round_.updates.values(), key=lambda s: s.member)
        public = self.session.public
        factors = rules.clip_factors([s.norm for s in spooled]) if public else [1.0] * len(spooled)
        if self.session.dp_noise:  # clip before the mean: Flower then receives no single client's change
            most = self.session.dp_clip
            factors = [min(f, most / s.norm) if s.norm > most else f for f, s in zip(factors, spooled, strict=True)]
        for one, factor in zip(spooled, factors, strict=True):
            if factor < 1 and one.member in self.members:
                self.members[one.member].said = f"clipped to {factor:.2f}"
        if not spooled:
            none = np.zeros((0, len(round_.parameters)), np.float32)
            return Reply(round_.task, none, {"tokens": [], "loss": [], "clients": 0})
        rows = (self._clipped(one, factor) for one, factor in zip(spooled, factors, strict=True))
        tokens = [float(s.tokens) for s in spooled]
        if len(spooled) * round_.parameters.nbytes > self.most_held:
            weights = [1.0] * len(spooled) if self.session.dp_noise else tokens
            mean = _streamed_mean(rows, weights, len(round_.parameters))
            total = sum(tokens)
            loss = sum(s.loss * s.tokens for s in spooled) / total
            return Reply(round_.task, mean[None], {"tokens": [total], "loss": [loss], "clients": len(spooled)})
        losses = [s.loss for s in spooled]
        return Reply(round_.task, np.stack(list(rows)), {"tokens": tokens, "loss": losses, "clients": len(spooled)})

    def _clipped(self, one: Spooled, factor: float) -> Vector:
        after = one.after()
        if factor == 1:
            return after
        assert self.open is not None
        before = self.open.parameters
        return np.asarray(before + (after - before) * np.float32(factor), np.float32)

    def figures(self) -> dict[str, Any]:
        """Returns the line of a closed round with updates, for `rounds.jsonl`."""
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

    def _privacy(self, rounds: int) -> dict[str, float]:
        """Returns the privacy budget that this many rounds spend; empty without noise."""
        noise = self.session.dp_noise
        return {"epsilon": round(rules.epsilon(noise, rounds), 4), "delta": rules.DELTA} if noise else {}

    def _in_round(self, member: Member) -> dict[str, Any]:
        """Returns a member's step in the open round (0 before the offer) and whether it has answered."""
        round_ = self.open
        if round_ is None:
            return {"step": 0, "answered": False}
        return {
            "step": member.step if member.offered == round_.id else 0,
            "answered": member.number in round_.updates,
        }

    def status(self) -> dict[str, Any]:
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
            "round": round_
            and {
                "number": round_.number,
                "closed": round_.closed,
                "answers": len(round_.updates),
                "seconds_left": round(max(0.0, self._closes(round_) - self.clock()), 1),
                "asked": sum(1 for m in self.members.values() if m.offered == round_.id),
            },
            "members": [m.shown() | self._in_round(m) for m in self.members.values()],
        }


def _struck_out(strikes: int, why: str) -> str:
    """Returns why a member with this many rejected updates is set aside; "" if it is not."""
    return f"{strikes} rejected updates; the last: {why}" if strikes >= rules.MAX_STRIKES else ""


def _streamed_mean(rows: Iterable[Vector], weights: list[float], count: int) -> Vector:
    mean, total = np.zeros(count), sum(weights)
    for row, weight in zip(rows, weights, strict=True):
        mean += row * (weight / total)
    return mean.astype(np.float32)


def _line(spooled: Spooled) -> str:
    return json.dumps(asdict(spooled) | {"file": spooled.file.name}) + "\n"


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
