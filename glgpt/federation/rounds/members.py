"""Defines the members of a site: who is admitted, which seat a member has, and who is set aside.

A member's seat is its number, which determines its share of the text. The updates of a member that is set aside are
rejected.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, ValuesView
from dataclasses import asdict, dataclass
from typing import Any

from glgpt.errors import GlgptError, quoted
from glgpt.federation import protocol, rules
from glgpt.federation.invitations import Invitations, digest
from glgpt.federation.protocol import Join
from glgpt.federation.rounds.updates import OpenRound, Rejected
from glgpt.federation.session import Files, Session, append_line, json_lines, write_synced

MEMBERS = "members.jsonl"

MAX_REASON_CHARACTERS = 200  # maximum characters of a reason that all members see
REMOVED, REVOKED = "removed", "the invitation was revoked"  # values of `aside` with which a member may not connect
IDLE_ROUNDS = 3  # number of rounds after joining for which a connected member keeps its seat without an accepted update
ABSENCE_TIMEOUT_S = 3600.0  # seconds for which an offline member with accepted updates keeps its seat
MEMBER_LINES = 1000  # members.jsonl is rewritten when it has this many more lines than there are members


class Refused(Exception):  # noqa: N818, not a programming error
    """Raised to refuse a client; `code` is the close code of its socket."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass
class Member:
    """A client that has joined. `number` is its seat and never changes."""

    number: int
    key: str  # SHA-256 of its resume key
    name: str
    device: str
    kind: str
    own_text: bool
    strikes: int = 0
    aside: str = ""  # the reason why the member is set aside; "" if it is not
    accepted: int = 0  # number of accepted updates
    invitation: str = ""  # SHA-256 of the token with which it last joined
    # The fields below are not stored.
    connections: int = 0
    step: int = 0
    loss: float | None = None
    norm: float | None = None
    tokens_per_s: float = 0.0
    ping_ms: float = 0.0
    bytes_in: int = 0
    bytes_out: int = 0
    said: str = ""  # the result of its last update
    offered: str = ""  # id of the last round offered to it
    since: int = 0  # round in which it joined
    seen: float = 0.0  # when it was last connected, by the clock of `Members`

    KEPT = ("number", "key", "name", "device", "kind", "own_text", "strikes", "aside", "accepted", "invitation")
    HIDDEN = ("key", "offered", "invitation", "since", "seen")

    @property
    def barred(self) -> bool:
        """True if the member may not connect."""
        return self.aside in (REMOVED, REVOKED)

    def kept(self) -> dict[str, Any]:
        """Returns the fields that are stored on disk."""
        return {name: getattr(self, name) for name in self.KEPT}

    def shown(self) -> dict[str, Any]:
        """Returns the fields that the dashboard shows; other members see only those of `replies.MemberRow`."""
        return {k: v for k, v in asdict(self).items() if k not in self.HIDDEN}


class Members(Mapping[int, Member]):
    """The members of a site by number, and which of them may connect."""

    def __init__(
        self,
        files: Files,
        invitations: Invitations,
        open_round: Callable[[], OpenRound | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.files, self.invitations, self.clock = files, invitations, clock
        self.session: Session = files.session()
        self._open_round = open_round
        self._by_number: dict[int, Member] = {}
        self._removed: set[str] = set()  # `Member.key` of all removed members, even if others now have their seats
        self._lines = 0  # number of lines in members.jsonl
        for line in json_lines(self.files.site_folder / MEMBERS):
            member = Member(**line)
            if member.aside == REMOVED:
                self._removed.add(member.key)
            member.seen = self.clock()
            self._by_number[member.number] = member
        self._write_members()

    def __getitem__(self, number: int) -> Member:
        return self._by_number[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_number)

    def __len__(self) -> int:
        return len(self._by_number)

    def values(self) -> ValuesView[Member]:
        """Returns the members. Another thread may copy them with `list`."""
        return self._by_number.values()

    def admit(self, join: Join) -> tuple[Member, str]:
        """Admits a new member, or a known member that sends its resume key. Returns the member and its resume key.

        Raises Refused if the client may not join.
        """
        known = self._by_key(join.resume) if join.resume else None
        if join.resume and _hash(join.resume) in self._removed:
            raise Refused(protocol.REMOVED, "the host removed this device")
        try:
            self.invitations.check(join.token)
        except GlgptError as error:
            raise Refused(protocol.NO_TOKEN, str(error)) from None
        if join.digest != self.session.digest:
            why = "another program: this client trains differently from the session; install the host's glgpt version"
            raise Refused(protocol.NO_TOKEN, why)
        if join.tokenizer != self.session.tokenizer:
            raise Refused(protocol.NO_TOKEN, "another tokenizer: this client's token ids differ from the session's")
        if known is not None:
            self._resume(known, join)
            return known, join.resume
        number = self._seat()
        self._use(join.token)
        before = self.get(number)
        if before is not None and not before.aside:
            self.invitations.give_back(before.invitation)
        key = secrets.token_urlsafe(24)
        name = join.name or f"{join.kind} {number + 1}"
        member = Member(number, _hash(key), name, join.device, join.kind, join.own_text)
        member.invitation, member.since, member.seen = digest(join.token), self._round_number(), self.clock()
        self._by_number[number] = member
        self.keep(member)
        return member, key

    def _resume(self, known: Member, join: Join) -> None:
        """Admits a known member. Raises Refused if the member sends a new invitation that has no uses left."""
        before = known.kept()
        if known.invitation != digest(join.token):
            if known.invitation:
                self._use(join.token)
            known.invitation = digest(join.token)
            if known.aside == REVOKED:
                known.aside = struck_out(known.strikes, known.said)
        known.name, known.device = join.name or known.name, join.device or known.device
        if known.kept() != before:
            self.keep(known)

    def _use(self, token: str) -> None:
        try:
            self.invitations.use(token)
        except GlgptError as error:
            raise Refused(protocol.NO_TOKEN, str(error)) from None

    def _round_number(self) -> int:
        """Returns the number of the open round, or of the next round if no round is open."""
        current = self._open_round()
        return current.number if current is not None else self.files.round_of() + 1

    def _seat(self) -> int:
        """Returns the number of a seat for a new member: a free seat, or one that another member loses.

        Raises Refused if all members keep their seats.
        """
        numbers = range(self.files.site, self.session.seats, self.session.gateways)
        for number in numbers:
            if number not in self:
                return number
        giving = [(rank, m.seen, m.number) for m in self.values() if (rank := self._gives_way(m)) is not None]
        if not giving:
            raise Refused(protocol.FULL, f"the session is full: it has {len(self)} members")
        return min(giving)[2]

    def _gives_way(self, member: Member) -> int | None:
        """Returns the order in which a member loses its seat to a new member (0: first), or None if it keeps the seat.

        The order is: members that are set aside; offline members without an accepted update; connected members that
        joined `IDLE_ROUNDS` rounds ago or earlier and have no accepted update; members with accepted updates that have
        been offline for `ABSENCE_TIMEOUT_S` seconds.
        """
        current = self._open_round()
        if member.number >= self.session.seats or (current is not None and member.number in current.updates):
            return None  # the session no longer has this seat, or the member's update counts in the open round
        if member.aside:
            return 0
        if not member.connections:
            if not member.accepted:
                return 1
            return 3 if self.clock() - member.seen >= ABSENCE_TIMEOUT_S else None
        idle = not member.accepted and self._round_number() - member.since >= IDLE_ROUNDS
        return 2 if idle else None

    def seated(self, member: Member) -> bool:
        """True unless the member's seat was given to another member."""
        return self.get(member.number) is member

    def connected(self, member: Member) -> None:
        """Counts a new connection of a member."""
        member.connections += 1

    def disconnected(self, member: Member) -> None:
        """Counts a closed connection of a member."""
        member.connections -= 1
        member.seen = self.clock()

    def revoke(self, token_digest: str) -> list[Member] | None:
        """Revokes an invitation. Sets aside the members that joined with it, and returns these members.

        Returns None if the invitation is unknown.
        """
        if not self.invitations.revoke(token_digest):
            return None
        found = [m for m in self.values() if m.invitation == token_digest and m.aside != REMOVED]
        for member in found:
            member.aside = REVOKED
            self.keep(member)
        return found

    def _by_key(self, key: str) -> Member | None:
        wanted = _hash(key)
        return next((m for m in self.values() if secrets.compare_digest(m.key, wanted)), None)

    def knows(self, key: str) -> bool:
        """True if a resume key belongs to a member that may connect."""
        found = self._by_key(key)
        return found is not None and not found.barred

    def remove(self, number: int) -> bool:
        """Removes a member permanently. Returns False if no member has this number."""
        member = self.get(number)
        if member is None:
            return False
        member.aside = REMOVED
        self._removed.add(member.key)
        self.keep(member)
        return True

    def keep(self, member: Member) -> None:
        """Writes a changed member to disk."""
        append_line(self.files.site_folder / MEMBERS, json.dumps(member.kept()))
        self._lines += 1
        if self._lines > MEMBER_LINES + len(self) + len(self._removed):
            self._write_members()

    def _write_members(self) -> None:
        """Rewrites members.jsonl with one line per member.

        Removed members come first: if two lines have the same number, the later line counts.
        """
        removed = [line for line in json_lines(self.files.site_folder / MEMBERS) if line["aside"] == REMOVED]
        lines = {line["key"]: line for line in removed} | {m.key: m.kept() for m in self.values()}
        write_synced(
            self.files.site_folder / MEMBERS, "".join(json.dumps(line) + "\n" for line in lines.values()).encode()
        )
        self._lines = len(lines)

    def strike(self, member: Member, why: str) -> Rejected:
        """Counts a rejected update against a member. Returns the error that the caller should raise."""
        why = quoted(why, MAX_REASON_CHARACTERS)
        member.strikes += 1
        member.said = f"rejected: {why}"
        member.aside = struck_out(member.strikes, why)
        self.keep(member)
        return Rejected(why)


def struck_out(strikes: int, why: str) -> str:
    """Returns why a member with this many rejected updates is set aside, or "" if it is not set aside."""
    return f"{strikes} rejected updates; the last: {why}" if strikes >= rules.MAX_STRIKES else ""


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
