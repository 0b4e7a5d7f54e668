"""Creates and checks invitations: signed tokens that expire, can be revoked and may have a limited number of uses.

The file of invitations holds a hash of each token, not the token itself.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from glgpt.errors import GlgptError
from glgpt.federation.replies import Invitation
from glgpt.system.files import read_json, write_json

MEMBER_LIFE_S = 7 * 24 * 3600.0  # seconds that a member's invitation or a link to a dashboard is valid by default
DASHBOARD_LIFE_S = 30 * 24 * 3600.0  # seconds that a dashboard's token is valid
# Kinds of the host's tokens. An open dashboard has a HOST token, and a link that opens a dashboard has a HOST_LINK
# token. `glgpt federate link` and `status` on this machine use a COMMANDS token. Invitations of members have the kind
# "member".
HOST, HOST_LINK, COMMANDS = "host", "host link", "host commands"
HOST_KINDS = (HOST, HOST_LINK, COMMANDS)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _data(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def digest(token: str) -> str:
    """Returns the hash that is stored for a token."""
    return hashlib.sha256(token.encode()).hexdigest()


class Invitations:
    """The invitations of one gateway of a session, signed with `key`; the file `path` stores their hashes.

    `clock` returns seconds since the epoch.
    """

    def __init__(self, path: Path, key: bytes, session: str, clock: Callable[[], float] = time.time) -> None:
        self._path, self._key, self._session, self._clock = path, key, session, clock
        self._known: dict[str, dict[str, Any]] = read_json(path) if path.exists() else {}

    def create(self, life: float = MEMBER_LIFE_S, uses: int | None = None, kind: str = "member") -> str:
        """Returns a new token, valid for `life` seconds, with which `uses` members may join (None: any number).

        `kind` is "member" or one of `HOST_KINDS`. Forgets the host's tokens that have expired.
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
        """Raises GlgptError, always with the same message, unless the token is valid and of one of `kinds`.

        Without `kinds`, the token must be of the kind "member".
        """
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
            raise GlgptError("this invitation is unknown, expired or revoked; ask the host for a new one")

    def use(self, token: str) -> None:
        """Counts a member that joins with the token. Raises GlgptError if the token is invalid or has no uses left."""
        self.check(token)
        known = self._known[digest(token)]
        if known["uses"] is None:
            return
        if known["uses"] < 1:
            raise GlgptError("this invitation has no uses left; ask the host for a new one")
        known["uses"] -= 1
        self._store()

    def give_back(self, token_digest: str) -> None:
        """Restores one use of a token, after a member that joined with it lost its seat."""
        known = self._known.get(token_digest)
        if known is not None and known["uses"] is not None:
            known["uses"] += 1
            self._store()

    def revoke(self, token_digest: str) -> bool:
        """Revokes the token with this digest. Returns False if no token has this digest."""
        if token_digest not in self._known:
            return False
        self._known[token_digest]["revoked"] = True
        self._store()
        return True

    def exchange(self, token: str) -> str:
        """Returns a new token of the kind `HOST`, in exchange for `token`, which may be any token of the host.

        Revokes the token of a link, so that a link works only once. Raises GlgptError if `token` is invalid.
        """
        self.check(token, *HOST_KINDS)
        if self._known[digest(token)]["kind"] == HOST_LINK:
            self._known[digest(token)]["revoked"] = True
        return self.create(DASHBOARD_LIFE_S, None, HOST)

    def turn_out_hosts(self, but: str) -> None:
        """Revokes the tokens of all dashboards and of all links to dashboards, except the token `but`."""
        for name, known in self._known.items():
            known["revoked"] |= known["kind"] in (HOST, HOST_LINK) and name != digest(but)
        self._store()

    def listed(self) -> list[Invitation]:
        """Returns all stored invitations, for the host."""
        return [cast("Invitation", {"digest": key, **value}) for key, value in self._known.items()]

    def _store(self) -> None:
        write_json(self._path, self._known)
