"""Sends a desktop client's requests to the host. Hosts are untrusted: checks the answers and limits their sizes."""

from __future__ import annotations

import json
import os
import ssl
from dataclasses import dataclass

import httpx
import numpy as np

from glgpt.errors import GlgptError, quoted
from glgpt.federation.session import Session
from glgpt.system.network import is_web_address, url_parts
from glgpt.text.dataset import Ids

MAX_TERMS_BYTES = 1 << 20  # maximum bytes of the session's terms
MAX_TOKENIZER_BYTES = 64 << 20  # maximum bytes of all tokenizer files together
# Number of arrays of the parameters' size that a member holds: weights, gradients, AdamW's moments, the update, …
VECTORS = 8
DEFAULT_MEMORY = 8 << 30  # bytes of memory that are assumed if the system does not report the memory's size


@dataclass(frozen=True)
class Link:
    """An invitation link: the host's base URL and, after the `#`, the token."""

    base: str  # such as http://host:port/
    token: str

    @classmethod
    def parse(cls, text: str) -> Link:
        """Parses an invitation link for desktops or browsers. Raises GlgptError if `text` is not such a link."""
        split = url_parts(text)
        _, browser, token = split.fragment.rpartition("together=")
        token = token.partition("&")[0]
        if token.startswith("host="):
            raise GlgptError(f"{quoted(text)} opens the host's dashboard; use the invitation link in the dashboard")
        if not is_web_address(text) or "." not in token:
            raise GlgptError(
                f"{quoted(text)} is not an invitation; use the link that glgpt federate serve prints, such as "
                "http://127.0.0.1:8043/#…"
            )
        path = split.path.removesuffix("train/") if browser else split.path
        return cls(f"{split.scheme}://{split.netloc}{path if path.endswith('/') else path + '/'}", token)

    @property
    def socket(self) -> str:
        """Returns the WebSocket URL."""
        return "ws" + self.base.removeprefix("http") + "v1/socket"


class Host:
    """Calls the REST API of the host that an invitation link names."""

    def __init__(self, link: Link) -> None:
        headers = {"Authorization": f"Bearer {link.token}", "Accept-Encoding": "identity"}
        trusted = ssl.create_default_context()  # certificate authorities of the system or of SSL_CERT_FILE
        self._client = httpx.Client(base_url=link.base, headers=headers, timeout=60, trust_env=False, verify=trusted)
        self._base = link.base

    def get(self, path: str, most: int) -> bytearray:
        """Returns the response body. Raises GlgptError for a failed request or a body of more than `most` bytes."""
        body = bytearray()
        try:
            with self._client.stream("GET", path) as response:
                self._check(response)
                for chunk in response.iter_raw():
                    body += chunk
                    if len(body) > most:
                        raise GlgptError(f"{self._base}{path} sends more than the maximum of {most:,} bytes")
        except httpx.HTTPError as error:
            raise GlgptError(f"{self._base} does not answer: {quoted(error, 200)}") from None
        return body

    def _check(self, response: httpx.Response) -> None:
        if response.status_code == 401:
            raise GlgptError("this invitation is unknown, expired or revoked; ask the host for a new link")
        if response.status_code != 200:
            raise GlgptError(f"{self._base} answered {response.status_code}; is it a glgpt federation?")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise GlgptError(f"{self._base} sent a compressed answer, which was not requested")

    def session(self) -> Session:
        """Returns the session's terms. Raises GlgptError if they are invalid, or if training needs too much memory."""
        try:
            about = json.loads(self.get("v1/session", MAX_TERMS_BYTES))
            fields = {k: v for k, v in about.items() if k in Session.model_fields}
            session = Session.model_validate_json(json.dumps(fields))
            count = session.model.parameter_count
        except (AttributeError, RecursionError, TypeError, ValueError) as error:
            if isinstance(error, GlgptError):
                raise
            raise GlgptError(f"{self._base} runs an incompatible version of glgpt: {quoted(error, 200)}") from None
        if session.parameters != count:
            raise GlgptError(
                f"{self._base} describes a model of {count:,} parameters but reports {session.parameters:,}"
            )
        check_memory(4 * VECTORS * count, f"training its model of {count:,} parameters")
        return session

    def tokenizer(self) -> dict[str, str]:
        """Returns the tokenizer's files by name. Raises GlgptError if the answer has another form."""
        try:
            files = json.loads(self.get("v1/session/tokenizer", MAX_TOKENIZER_BYTES))
            if isinstance(files, dict) and all(isinstance(text, str) for text in files.values()):
                return files
        except (RecursionError, UnicodeError, json.JSONDecodeError):
            pass
        raise GlgptError(f"{self._base} sent an invalid tokenizer")

    def ids(self, session: Session) -> Ids:
        """Returns the token ids of the session's text. Raises GlgptError if they are invalid or too many."""
        size = 4 * session.train_tokens
        check_memory(size, f"its text of {session.train_tokens:,} tokens", "; join with your own text")
        data = self.get("v1/session/text", size)
        if len(data) != size:
            raise GlgptError(f"{self._base} sent {len(data):,} bytes of text, not {size:,}")
        ids = np.frombuffer(data, "<u4").astype(np.uint32, copy=False)
        if len(ids) and int(ids.max()) >= session.model.vocab_size:
            raise GlgptError("the session's text holds token ids outside the model's vocabulary")
        return ids


def physical_memory() -> int:
    """Returns the size of this machine's memory in bytes; `DEFAULT_MEMORY` if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows, or a system that does not report it
        return DEFAULT_MEMORY


def check_memory(needed: int, what: str, remedy: str = "") -> None:
    """Raises GlgptError if `needed` bytes exceed half of this machine's memory.

    The error message uses `what` (what needs the bytes) and `remedy` (what the user can do).
    """
    memory = physical_memory()
    if needed > memory // 2:
        raise GlgptError(
            f"the host's session is too large: {what} takes {needed / 2**30:.1f} GiB, more than half of this "
            f"machine's {memory / 2**30:.1f} GiB{remedy}"
        )
