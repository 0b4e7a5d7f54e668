"""Decides who may use the server: the API key, and the origins of web pages."""

from __future__ import annotations

import hmac
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from glgpt.api.errors import ApiError
from glgpt.errors import ArgumentError, FileError, quoted
from glgpt.system.files import read_text

ENVIRONMENT = "GLGPT_API_KEY"
MIN_KEY_CHARACTERS = 8
OPEN = ("/health",)  # paths that need no key


def api_key(given: str | None, file: str | None) -> str | None:
    """Returns the key `given`, the key in the file, or the key in the environment variable; None if all are missing.

    Raises ArgumentError if a key and a file are given. A key that is too short or has characters other than visible
    ASCII raises ArgumentError, or FileError if the key comes from a file.
    """
    if given is not None and file is not None:
        raise ArgumentError("both --api-key and --api-key-file were given; give one of them")
    source, key = "--api-key", given
    if file is not None:
        source, key = f"--api-key-file {quoted(file, 200)}", read_text(Path(file).expanduser(), 1 << 16).strip()
    elif given is None:
        source, key = f"${ENVIRONMENT}", os.environ.get(ENVIRONMENT) or None
    if key is None:
        return None
    if len(key) < MIN_KEY_CHARACTERS or not all("!" <= c <= "~" for c in key):
        kind = FileError if file is not None else ArgumentError
        raise kind(f"{source}: a key needs at least {MIN_KEY_CHARACTERS} visible ASCII characters, without blanks")
    return key


class Access:
    """Middleware that refuses requests without the key (unless `key` is None) and from pages outside `origins`.

    Pages of `origins` may read answers (CORS). A browser sends some requests of other pages too, and only hides the
    answers from these pages. Such requests are refused, because they would occupy the device.
    """

    def __init__(self, app: Any, key: str | None, origins: Collection[str]) -> None:
        self.key, self.origins, self._app = key, frozenset(origins), app
        self._cors = CORSMiddleware(
            self._with_key,
            allow_origins=list(origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles a request."""
        origin = _header(scope, b"origin")
        if origin is None:
            await self._with_key(scope, receive, send)
        elif origin in self.origins:
            await self._cors(scope, receive, send)
        else:
            why = f"pages of {quoted(origin)} may not use this server; to allow them, start it with --origin"
            await ApiError(403, why).response()(scope, receive, send)

    async def _with_key(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPEN or self._allows(_header(scope, b"authorization") or ""):
            await self._app(scope, receive, send)
            return
        why = "the API key is missing or wrong; send it as Authorization: Bearer KEY"
        await ApiError(401, why, code="invalid_api_key").response()(scope, receive, send)

    def _allows(self, authorization: str) -> bool:
        if self.key is None:
            return True
        kind, _, token = authorization.partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self.key.encode())


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)
