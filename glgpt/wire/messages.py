"""Defines the messages of a split model's client and server: each is JSON and a binary payload in a WebSocket message.

    client                                              server
    open  protocol, token?, model?, session?,       ->  opened  session, held, seq, the server's part
          wire?, part?
    step  seq, pos, n, ask? + hidden states or ids  ->  stepped seq, n, tokens?, ... + hidden states or logits
    look  seq, n, names?, head?, end?               ->  looked  seq, arrays + their values
          + hidden states or ids
                                                    <-  error   code, message

A message is the length of its JSON (4 bytes, little-endian), the JSON in UTF-8, and the payload. A row is a position of
the text; a session holds the rows that the server has processed. `pos` is the position of the first of `n` rows; if the
session already holds rows from `pos` on, these are discarded first. `seq` numbers the steps and looks of a session
consecutively. If the client resends the last step, the server sends the same answer again.
"""

from __future__ import annotations

import json
import struct
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from glgpt import ops
from glgpt.errors import GlgptError, quoted
from glgpt.wire.hidden import Format

T = TypeVar("T")
PROTOCOL = 1
MAX_HEADER_BYTES = 16384  # maximum bytes of a message's JSON
MAX_GUESSES, MAX_ALTERNATIVES = 7, 32
_LENGTH = struct.Struct("<I")

# Codes of errors. After one of the codes in `AGAIN`, the client reconnects and sends its rows again: the server evicted
# the session (EVICTED), is shutting down (DRAINING), lacks rows or steps before the received step (ORDER), or has too
# many connections (FULL). The others are final: a wrong token (TOKEN), another model, part or protocol version
# (UNSUITABLE), or an invalid message (BAD).
EVICTED, DRAINING, ORDER, FULL = "evicted", "draining", "order", "full"
TOKEN, UNSUITABLE, BAD = "token", "unsuitable", "bad"
AGAIN = (EVICTED, DRAINING, ORDER, FULL)

MAX_COUNT, MAX_SEQ = 2**31 - 1, 2**30
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Rows = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Seq = Annotated[int, Field(ge=0, le=MAX_SEQ)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Ask(_Message):
    """Requests the token after the last row.

    The server with the head samples this token like a `Sampler` (`inference.sampling`) with `seed`. `draw` is the
    number of earlier random draws. With `guesses`, the rows are those of a token and of the guesses of the tokens after
    it. The answer then has the guesses before the first wrong one, and one more token. `alternatives` is the number of
    likeliest tokens to return with each token. `logits` requests all logits of the last row; it is ignored if there are
    guesses.
    """

    temperature: Annotated[float, Field(ge=0, le=ops.MAX_TEMPERATURE)] = 0.0
    top_k: Rows | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    draw: Annotated[int, Field(ge=0, le=ops.MAX_STEP - MAX_GUESSES)] = 0
    guesses: Annotated[tuple[Count, ...], Field(max_length=MAX_GUESSES, strict=False)] = ()
    alternatives: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] = 0
    logits: bool = False


class Open(_Message):
    """The first message of a connection. `model` is the digest of the model that the server must hold.

    `part` requests fewer blocks than the server holds.
    """

    op: Literal["open"] = "open"
    protocol: int
    token: Annotated[str, Field(max_length=1024)] | None = None
    model: Annotated[str, Field(max_length=64)] | None = None
    session: Annotated[str, Field(max_length=64)] | None = None
    wire: Format = "f32"
    part: Annotated[str, Field(max_length=40)] | None = None


class Step(_Message):
    """Requests to run `n` rows, from position `pos` on, through the server's blocks."""

    op: Literal["step"] = "step"
    seq: Seq
    pos: Count
    n: Rows
    ask: Ask | None = None


class Look(_Message):
    """Requests named activations of `n` rows, which start at position 0 and do not become part of the session.

    With `head`, the rows go straight to the final norm and the head, so the rows may be states between any two blocks.
    The answer includes the logits or the last hidden states of all rows, unless `end` is false.
    """

    op: Literal["look"] = "look"
    seq: Seq
    n: Rows
    names: Annotated[tuple[Annotated[str, Field(max_length=100)], ...], Field(max_length=256, strict=False)] = ()
    head: bool = False
    end: bool = True


class _FromServer(_Message):
    """A message from a server. Unknown fields are ignored, so that a newer server can add fields."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


Milliseconds = Annotated[float, Field(ge=0)]
Candidate = tuple[Count, Annotated[float, Field(ge=0, le=1.001)], Annotated[float, Field(ge=0, le=1.001)]]


class Opened(_FromServer):
    """The answer to `open`: the session, its number of rows, the number of its last step, and the server's blocks."""

    op: Literal["opened"] = "opened"
    session: Annotated[str, Field(max_length=64)]
    held: Count
    seq: Annotated[int, Field(ge=-1, le=MAX_SEQ)]
    holds: Annotated[str, Field(max_length=40)]
    model: str = "a model"
    digest: str = ""
    shape: Annotated[dict[str, Count], Field(max_length=16)] = {}
    context: Count = 0  # positions per session; 0, or not sent: the model's context
    dtype: str = "f32"
    sizes: Annotated[tuple[Rows, ...], Field(max_length=64, strict=False)] = ()  # numbers of rows computed at once
    sessions: Count = 0  # maximum number of sessions with caches


class Stepped(_FromServer):
    """The answer to a step of `n` rows.

    A server with the head returns the requested tokens; otherwise, the payload is hidden states. With alternatives,
    `top` lists for each token the token itself and its alternatives: an id, its probability in the model, and its
    probability after the sampling options.
    """

    op: Literal["stepped"] = "stepped"
    seq: Seq
    n: Rows
    ms: Milliseconds = 0.0
    queue_ms: Milliseconds = 0.0
    tokens: Annotated[list[Count], Field(max_length=MAX_GUESSES + 1)] = []
    top: Annotated[list[list[Candidate]], Field(max_length=MAX_GUESSES + 1)] = []


class Looked(_FromServer):
    """The answer to `look`: the names and shapes of the arrays in the payload."""

    op: Literal["looked"] = "looked"
    seq: Seq
    arrays: Annotated[list[tuple[Annotated[str, Field(pattern=r"^[\w.]+$")], list[Count]]], Field(max_length=257)]
    ms: Milliseconds = 0.0


class Failed(_FromServer):
    """The reason why the server ends the connection."""

    op: Literal["error"] = "error"
    code: str
    message: str


Said = Opened | Stepped | Looked | Failed
ClientSaid = Open | Step | Look
_CLIENT: TypeAdapter[ClientSaid] = TypeAdapter(Annotated[ClientSaid, Field(discriminator="op")])
_SERVER: TypeAdapter[Said] = TypeAdapter(Annotated[Said, Field(discriminator="op")])


def encode(header: _Message, *payload: bytes | memoryview) -> bytes:
    """Returns a message as bytes. Each part of the payload is copied only once."""
    fields = {"op": getattr(header, "op", "")} | header.model_dump(exclude_defaults=True)
    text = json.dumps(fields, separators=(",", ":")).encode()
    return b"".join((_LENGTH.pack(len(text)), text, *payload))


def decode_answer(data: bytes) -> tuple[Said, memoryview]:
    """Returns a server's message and its payload. Raises GlgptError naming the wrong field."""
    return _read(_SERVER, data)


def decode_request(data: bytes) -> tuple[ClientSaid, memoryview]:
    """Returns a client's message and its payload. Raises GlgptError naming the wrong field."""
    return _read(_CLIENT, data)


def _read(kind: TypeAdapter[T], data: bytes) -> tuple[T, memoryview]:
    """Returns a message and its payload."""
    size = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else 0
    start = _LENGTH.size
    if not 2 <= size <= min(len(data) - start, MAX_HEADER_BYTES):
        raise GlgptError(f"a message of {len(data)} bytes has no complete JSON header")
    try:
        return kind.validate_json(data[start : start + size]), memoryview(data)[start + size :]
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "message"
        raise GlgptError(quoted(f"{where}: {first['msg']}", 200)) from None
