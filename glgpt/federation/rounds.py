"""The rounds of one site: who is a member, which round is open, what came, and when the round ends.

Knows neither sockets nor Flower: time is given by a clock, and all of it is called from one thread. Members and
accepted updates are on the disk before anyone is told of them, so that a killed gateway forgets nothing.
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
from glgpt.federation.invitations import Invitations, digest
from glgpt.federation.protocol import Join, Update, Vector
from glgpt.federation.session import Files, Session, json_lines, weights_id, write_synced

MOST_HELD = 256 << 20  # bytes of a round's updates; beyond, the site answers with their clipped mean
OPEN, MEMBERS, SPOOL, QUARANTINE = "open.safetensors", "members.jsonl", "spool", "quarantine"
MAX_SAID = 200  # characters of a reason that is shown to all
REMOVED, REVOKED = "removed", "the invitation was revoked"  # why a member is set aside, and may not connect
IDLE_ROUNDS = 3  # without an update, after which a new member's seat may be given away
ABSENCE = 3600.0  # seconds offline, after which the seat of a member that trained may be given away
MEMBER_LINES = 1000  # of members.jsonl beyond its members, after which it is written again
logger = logging.getLogger(__name__)


class Refused(Exception):  # noqa: N818, not an error of ours
    """A client that is not let in; `code` closes its socket."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Rejected(Exception):  # noqa: N818
    """An update that does not count; `stale`: it was for another round, which is no fault."""

    def __init__(self, why: str, stale: bool = False) -> None:
        super().__init__(why)
        self.stale = stale


class RunOver(Exception):  # noqa: N818
    """Flower's run that asked for a round has ended: its answer is wanted no more, and the next run asks again."""


@dataclass
class Member:
    """A client that joined; its number never changes and is nobody else's."""

    number: int
    key: str  # SHA-256 of its resume key
    name: str
    device: str
    kind: str
    own_text: bool
    strikes: int = 0
    aside: str = ""  # why its updates count no more
    accepted: int = 0
    invitation: str = ""  # SHA-256 of the token that it last joined by
    # what follows is shown, and not kept
    connections: int = 0
    step: int = 0
    loss: float | None = None
    norm: float | None = None
    tokens_per_s: float = 0.0
    ping_ms: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    said: str = ""  # what became of its last update
    offered: str = ""  # the id of the round that it was last sent
    since: int = 0  # the round in which it joined
    seen: float = 0.0  # when it was last connected, by the clock of `Rounds`

    KEPT = ("number", "key", "name", "device", "kind", "own_text", "strikes", "aside", "accepted", "invitation")
    HIDDEN = ("key", "offered", "invitation", "since", "seen")

    @property
    def barred(self) -> bool:
        """True if it may not connect."""
        return self.aside in (REMOVED, REVOKED)

    def kept(self) -> dict[str, Any]:
        """What is on the disk."""
        return {name: getattr(self, name) for name in self.KEPT}

    def shown(self) -> dict[str, Any]:
        """What the dashboard and the other members see."""
        return {k: v for k, v in asdict(self).items() if k not in self.HIDDEN}


@dataclass(frozen=True)
class Spooled:
    """An accepted update."""

    member: int
    tokens: int
    steps: int
    loss: float
    norm: float
    file: Path

    def after(self) -> Vector:
        """The client's parameters after its steps."""
        return np.fromfile(self.file, "<f4").astype(np.float32, copy=False)

    def check(self, bounds: rules.Bounds, limits: rules.NormLimits, count: int) -> None:
        """Raises GlgptError or OSError for an update that cannot be combined with others of `count` values."""
        rules.check_claims(self, bounds)
        limits.check(self.norm, self.steps)
        values = self.after()
        if len(values) != count or not np.isfinite(values).all():
            raise GlgptError(f"{self.file.name} does not hold {count} finite values")


_SPOOLED = TypeAdapter(Spooled)


@dataclass
class OpenRound:
    """A round that is being trained, or that was and whose answer Flower has not got yet."""

    number: int
    id: str
    parameters: Vector
    limits: rules.NormLimits
    task: bytes
    opened: float
    deadline: float
    quorum_at: float | None = None
    closed: bool = False
    settled: bool = False  # closed on the disk: it may be answered, and stays as it is after a restart
    wrapped_up: bool = False
    updates: dict[int, Spooled] = field(default_factory=dict)
    attempt: int = 0  # how often all gateways together had less than the quorum
    had: int = 0  # updates at the end of the last attempt


@dataclass(frozen=True)
class Reply:
    """What a site answers a round with: a row of `updates` [k, n] a client, each its parameters after the round."""

    task: bytes
    updates: NDArray[np.float32]
    metrics: dict[str, list[float] | int]


class Rounds:
    """The members and the open round of a site."""

    def __init__(self, files: Files, invitations: Invitations, clock: Callable[[], float] = time.monotonic) -> None:
        self.files, self.invitations, self.clock = files, invitations, clock
        self.session: Session = files.session()
        self.members: dict[int, Member] = {}
        self.open: OpenRound | None = None
        self.most_held = MOST_HELD
        self._attended = -math.inf  # when a device was last at work on a round
        self.quorum = -(-self.session.quorum // self.session.gateways)  # this site's share
        self.spool = files.site_folder / SPOOL
        self.spool.mkdir(parents=True, exist_ok=True)
        self._removed: set[str] = set()  # keys of members that were removed, and whose seat another may have
        self._lines = 0  # of members.jsonl
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
        """The member that joins, new or known by its resume key; and its key. Raises Refused."""
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
            raise Refused(protocol.NO_TOKEN, "another tokenizer: the client's ids would mean other tokens")
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
        """Lets a member in that is known; by another invitation, too. Raises Refused where that admits no more."""
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
        """The round under way."""
        return self.open.number if self.open is not None else self.files.round_of() + 1

    def _seat(self) -> int:
        """Returns a number for a new member: a free one, or that of a member who gives way. Raises Refused."""
        numbers = range(self.files.site, self._seats(), self.session.gateways)
        for number in numbers:
            if number not in self.members:
                return number
        giving = [(rank, m.seen, m.number) for m in self.members.values() if (rank := self._gives_way(m)) is not None]
        if not giving:
            raise Refused(protocol.FULL, f"the session is full: {len(self.members)} members joined here")
        return min(giving)[2]

    def _seats(self) -> int:
        return min(self.session.members * self.session.gateways, self.session.shards)

    def _gives_way(self, member: Member) -> int | None:
        """Returns how readily a member's seat is given to another (0: first); None for one that keeps it.

        First those that were set aside, then those offline that never trained, then those connected that let some
        rounds pass, and last those that trained and are offline for long.
        """
        if member.number >= self._seats() or (self.open is not None and member.number in self.open.updates):
            return None  # an update under this number counts in the open round
        if member.aside:
            return 0
        if not member.connections:
            if not member.accepted:
                return 1
            return 3 if self.clock() - member.seen >= ABSENCE else None
        idle = not member.accepted and self._number() - member.since >= IDLE_ROUNDS
        return 2 if idle else None

    def seated(self, member: Member) -> bool:
        """False for a member whose seat was given to another."""
        return self.members.get(member.number) is member

    def connected(self, member: Member) -> None:
        """Counts a connection of a member."""
        member.connections += 1

    def disconnected(self, member: Member) -> None:
        """Counts the end of a connection of a member."""
        member.connections -= 1
        member.seen = self.clock()

    def revoke(self, token_digest: str) -> list[Member] | None:
        """Takes an invitation back; returns the members who joined by it, who are set aside. None: there is none."""
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
        """True if a resume key is that of a member who may connect."""
        found = self._by_key(key)
        return found is not None and not found.barred

    def remove(self, number: int) -> bool:
        """Sets a member aside for good; False where there is none."""
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
        """Writes members.jsonl again, with one line a member. Lines of removed members stay, before those of others."""
        removed = [line for line in json_lines(self.files.site_folder / MEMBERS) if line["aside"] == REMOVED]
        lines = {line["key"]: line for line in removed} | {m.key: m.kept() for m in self.members.values()}
        write_synced(
            self.files.site_folder / MEMBERS, "".join(json.dumps(line) + "\n" for line in lines.values()).encode()
        )
        self._lines = len(lines)

    # -- the open round ---------------------------------------------------------------------------------------------

    def asked_for(self, task: bytes, number: int, parameters: Vector, attempt: int = 0) -> OpenRound:
        """The round to open next; the open one where it is asked for again: it continues with what came.

        A new `attempt` says that all gateways together had less than the quorum: the round takes updates again, beside
        those that it has.
        """
        name = weights_id(number, parameters)
        before = self.open if self.open is not None and self.open.id == name else None  # of the same weights
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
        """Keeps the open round on the disk, and deletes what came for others."""
        assert self.open is not None
        text = {"number": str(self.open.number), "task": base64.b64encode(self.open.task).decode()}
        text |= {"attempt": str(self.open.attempt), "had": str(self.open.had)}
        write_synced(self.files.site_folder / OPEN, save({"parameters": self.open.parameters}, text))
        for old in self.spool.iterdir():
            if not old.name.startswith(f"{self.open.id}."):
                old.unlink()

    def settle(self) -> None:
        """Keeps on the disk that the open round is closed: its answer is the same from now on."""
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
        if self.files.round_of() >= number:  # Flower has the answer
            return
        self.open = self._round(number, parameters, base64.b64decode(text["task"]))
        self.open.attempt, self.open.had = int(text.get("attempt", 0)), int(text.get("had", 0))
        self.open.closed = self.open.settled = (self.spool / f"{self.open.id}.closed").exists()
        self._restore_updates(self.open)
        self._check_quorum()

    def _restore_updates(self, round_: OpenRound) -> None:
        """Reads the accepted updates of a restored round, and moves those that cannot be combined out of the spool.

        Such a file is damaged, or of a version that accepted more: left in place, it would fail the round after every
        restart. A closed round that is then below its quorum takes updates again.
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
        """Moves the file of a spooled update's line to a folder of its own."""
        name = Path(str(line.get("file"))).name if isinstance(line, dict) else ""
        folder = self.files.site_folder / QUARANTINE
        if (self.spool / name).is_file():
            folder.mkdir(exist_ok=True)
            (self.spool / name).replace(folder / name)
        logger.error("an update in the spool is moved to %s: %s", quoted(folder / name, 300), quoted(error, 300))

    def offer(self, member: Member) -> dict[str, Any] | None:
        """The `round` message for a member; None where there is nothing to train for it now."""
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
        """Raises Rejected for an update that cannot count, before its bytes are sent."""
        round_ = self.open
        if not self.seated(member):
            raise Rejected("another device has this one's place")
        if member.aside:
            raise Rejected(f"set aside: {member.aside}")
        if round_ is None or round_.closed or update.attempt != round_.id or update.round != round_.number:
            raise Rejected("stale: it began from the weights of another round", stale=True)
        if member.number in round_.updates:
            raise Rejected("this round has an update of yours already", stale=True)
        if update.dtype != self.session.dtype:
            raise self._strike(member, f"the session wants {self.session.dtype}, not {update.dtype}")
        if update.bytes != protocol.encoded_size(update.dtype, len(round_.parameters)):
            raise self._strike(member, f"{update.bytes} bytes are no vector of {len(round_.parameters)} values")
        try:
            rules.check_claims(update, self.session.bounds)
        except GlgptError as error:
            raise self._strike(member, str(error)) from None

    def decoded(self, update: Update, data: bytes, before: Vector) -> tuple[Vector, float]:
        """The parameters that an update means, and the norm of their change. May run beside the rest.

        Raises GlgptError for values that are not finite.
        """
        after = protocol.decode(update.dtype, data, update.scale, before)
        return after, rules.norm(after - before)

    def accept(self, member: Member, update: Update, after: Vector, norm: float) -> None:
        """Takes an update that was checked and decoded: it is on the disk when this returns. Raises Rejected."""
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
        """Counts an update that could not be decoded; gives what to tell."""
        return self._strike(member, why)

    def _strike(self, member: Member, why: str) -> Rejected:
        why = quoted(why, MAX_SAID)
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
        """When the round ends, as far as is known."""
        if round_.quorum_at is None:
            return round_.deadline
        return min(round_.deadline, round_.quorum_at + self.session.grace)

    def tick(self) -> str:
        """What is due now: `wrap_up` (clients still at it should send what they have), `close`, or nothing."""
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
        if now >= round_.deadline:  # below the quorum: what came is kept
            round_.deadline = now + self.session.round_seconds
            round_.wrapped_up = False
        if not round_.wrapped_up and now >= self._closes(round_) - self.session.grace / 2:
            round_.wrapped_up = True
            return "wrap_up"
        return ""

    def _enough(self, round_: OpenRound) -> bool:
        """Whether it has its quorum and, in a new attempt, an update more than in the last one."""
        return len(round_.updates) >= max(self.quorum, round_.had + 1)

    def _gives_up(self, round_: OpenRound, now: float) -> bool:
        """Whether other gateways should not wait for this one: its deadline is over, or no device is at work."""
        if now >= round_.deadline:
            return True
        return now - max(self._attended, round_.opened) >= self.session.grace

    def _pending(self, round_: OpenRound) -> list[Member]:
        """Members who were asked, are there, and have not answered."""
        return [
            m
            for m in self.members.values()
            if m.connections and not m.aside and m.offered == round_.id and m.number not in round_.updates
        ]

    def reply(self) -> Reply:
        """The answer of a closed round: every client's parameters, clipped in public sessions; above `most_held` bytes
        their mean by tokens.
        """
        round_ = self.open
        assert round_ is not None and round_.closed
        spooled = sorted(round_.updates.values(), key=lambda s: s.member)
        public = self.session.public
        factors = rules.clip_factors([s.norm for s in spooled]) if public else [1.0] * len(spooled)
        if self.session.dp_noise:  # before a mean is streamed: Flower then sees no change by itself
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
        """The line of a closed round, which has updates, for `rounds.jsonl`."""
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
        """What so many rounds spend, where there is noise."""
        noise = self.session.dp_noise
        return {"epsilon": round(rules.epsilon(noise, rounds), 4), "delta": rules.DELTA} if noise else {}

    def _in_round(self, member: Member) -> dict[str, Any]:
        """Returns a member's step of the open round, 0 before it is offered the round, and True if it has answered."""
        round_ = self.open
        if round_ is None:
            return {"step": 0, "answered": False}
        return {
            "step": member.step if member.offered == round_.id else 0,
            "answered": member.number in round_.updates,
        }

    def status(self) -> dict[str, Any]:
        """What the dashboard shows of now."""
        s, round_ = self.session, self.open
        return {
            "session": s.id,
            "name": s.name,
            "rounds": s.rounds,
            "local_steps": s.local_steps,
            "done": self.files.round_of(),
            "paused": self.files.paused,
            "quorum": self.quorum,
            "strategy": s.strategy,
            "public": s.public,
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
    """Returns why a member with this many rejected updates is set aside; empty if it is not."""
    return f"{strikes} rejected updates, the last one: {why}" if strikes >= rules.STRIKES else ""


def _streamed_mean(rows: Iterable[Vector], weights: list[float], count: int) -> Vector:
    mean, total = np.zeros(count), sum(weights)
    for row, weight in zip(rows, weights, strict=True):
        mean += row * (weight / total)
    return mean.astype(np.float32)


def _line(spooled: Spooled) -> str:
    return json.dumps(asdict(spooled) | {"file": spooled.file.name}) + "\n"


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
