"""Invitations: signed, expiring, perhaps for one member only, revocable. Stored are their hashes alone."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glgpt.errors import GlgptError
from glgpt.system.files import read_json, write_json

LIFE = 7 * 24 * 3600.0  # seconds
DASHBOARD_LIFE = 30 * 24 * 3600.0
HOST, HOST_LINK, COMMANDS = "host", "host link", "host commands"  # of a dashboard's tab, of its link, of this machine
HOST_KINDS = (HOST, HOST_LINK, COMMANDS)  # the host's tokens, as well as "member"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _data(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def digest(token: str) -> str:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Invitations:
    """A session's invitations. `clock` gives seconds since the epoch."""

    def __init__(self, path: Path, key: bytes, session: str, clock: Callable[[], float] = time.time) -> None:
        self._path, self._key, self._session, self._clock = path, key, session, clock
        self._known: dict[str, dict[str, Any]] = read_json(path) if path.exists() else {}

    def create(self, life: float = LIFE, uses: int | None = None, kind: str = "member") -> str:
        """Creates a token; `uses` is how many members may join by it, None: any number.

        `kind` is "member" or one of `HOST_KINDS`, whose tokens are forgotten when they have expired.
        """
        now = self._clock()
        self._known = {n: x for n, x in self._known.items() if x["expires"] > now or x["kind"] not in HOST_KINDS}
        payload = {"session": self._session, "n": secrets.token_hex(8), "expires": self._clock() + life, "kind": kind}
        body = _text(json.dumps(payload, separators=(",", ":")).encode())
        token = f"{body}.{_text(self._sign(body))}"
        self._known[digest(token)] = {"expires": payload["expires"], "uses": uses, "kind": kind, "revoked": False}
        self._store()
        return token

    def _sign(self, body: str) -> bytes:
        return hmac.new(self._key, body.encode(), hashlib.sha256).digest()

    def check(self, token: str, *kinds: str) -> None:
        """Raises GlgptError, which says no more than that, for a token that is not of these kinds (default: member)."""
        body, _, signature = token.partition(".")
        try:
            signed = hmac.compare_digest(self._sign(body), _data(signature))
            payload = json.loads(_data(body)) if signed else {}
        except (ValueError, UnicodeError):
            signed, payload = False, {}
        known = self._known.get(digest(token))
        good = (
            signed
            and known is not None
            and not known["revoked"]
            and payload.get("session") == self._session
            and known["kind"] in (kinds or ("member",))
            and known["expires"] > self._clock()
        )
        if not good:
            raise GlgptError("this invitation does not admit: it is unknown, expired or revoked")

    def use(self, token: str) -> None:
        """Counts a member who joins by the token. Raises GlgptError where it admits no more."""
        self.check(token)
        known = self._known[digest(token)]
        if known["uses"] is None:
            return
        if known["uses"] < 1:
            raise GlgptError("this invitation was used already")
        known["uses"] -= 1
        self._store()

    def give_back(self, token_digest: str) -> None:
        """Lets another member join by a token, where the seat of one who joined by it is given to another."""
        known = self._known.get(token_digest)
        if known is not None and known["uses"] is not None:
            known["uses"] += 1
            self._store()

    def revoke(self, token_digest: str) -> bool:
        """Takes back the token of a digest; False where there is none such."""
        if token_digest not in self._known:
            return False
        self._known[token_digest]["revoked"] = True
        self._store()
        return True

    def exchange(self, token: str) -> str:
        """Returns a dashboard's token for a host's that is good. A link's is worth nothing afterwards."""
        self.check(token, *HOST_KINDS)
        if self._known[digest(token)]["kind"] == HOST_LINK:
            self._known[digest(token)]["revoked"] = True
        return self.create(DASHBOARD_LIFE, None, HOST)

    def turn_out_hosts(self, but: str) -> None:
        """Revokes the tokens of all dashboards and their links but one."""
        for name, known in self._known.items():
            known["revoked"] |= known["kind"] in (HOST, HOST_LINK) and name != digest(but)
        self._store()

    def listed(self) -> list[dict[str, Any]]:
        """What is stored, for the host."""
        return [{"digest": key, **value} for key, value in self._known.items()]

    def _store(self) -> None:
        write_json(self._path, self._known)
