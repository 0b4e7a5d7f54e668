"""The messages between the sides of a split model: a line of JSON and a payload, one WebSocket message each.

    client                                              server
    open  protocol, token?, model?, session?,       ->  opened  session, held, seq, what the server holds
          wire, part?
    step  seq, pos, n, ask? + hidden states or ids  ->  stepped seq, tokens?, ... + hidden states or logits
    look  seq, n, names + hidden states or ids      ->  looked  seq, arrays + their values
                                                    <-  error   code, message

A message is the length of its JSON (4 bytes, little-endian), the JSON in UTF-8, the payload. `pos` is the position of
the first of `n` rows; one lower than what the session holds takes the later rows back. Steps are numbered by `seq`, one
after another in a session; the last one may be sent again and is answered as before.
"""

from __future__ import annotations

import json
import struct
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from glgpt.errors import GlgptError, quoted, written
from glgpt.wire.hidden import Format

PROTOCOL = 1
MOST_HEADER = 16384  # bytes of a message's JSON
MOST_GUESSES = 7
_LENGTH = struct.Struct("<I")

# Codes of errors. The first three end with a new session in which the client replays its ids; the others are final.
EVICTED, DRAINING, ORDER = "evicted", "draining", "order"
REFUSED, UNSUITABLE, BAD = "refused", "unsuitable", "bad"
AGAIN = (EVICTED, DRAINING, ORDER)

Count = Annotated[int, Field(ge=0, le=2**31)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Ask(_Message):
    """What the side with the head is asked for: the token behind the last row, drawn as a `Sampler` of `seed` would.

    `draw` counts the draws before this one. With `guesses`, the rows are a token and these guesses of what follows it:
    the answer is the token behind each row up to the first that a guess missed. `alternatives`: as many of the
    likeliest tokens beside each. `logits`: the last row's logits in full.
    """

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_k: Annotated[int, Field(ge=1, le=2**31)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**64)] | None = None
    draw: Count = 0
    guesses: Annotated[tuple[Count, ...], Field(max_length=MOST_GUESSES, strict=False)] = ()
    alternatives: Annotated[int, Field(ge=0, le=32)] = 0
    logits: bool = False


class Open(_Message):
    """The first message of a connection; `part` asks for less than the server holds."""

    op: Literal["open"] = "open"
    protocol: int
    token: Annotated[str, Field(max_length=1024)] | None = None
    model: Annotated[str, Field(max_length=64)] | None = None
    session: Annotated[str, Field(max_length=64)] | None = None
    wire: Format = "f32"
    part: Annotated[str, Field(max_length=40)] | None = None


class Step(_Message):
    """Runs `n` rows from position `pos`."""

    op: Literal["step"] = "step"
    seq: Count
    pos: Count
    n: Annotated[int, Field(ge=1, le=2**31)]
    ask: Ask | None = None


class Look(_Message):
    """Runs `n` rows from position 0 beside the session, and returns named activations of all of them.

    With `head`, the rows go straight to the final norm and the head: they may be states between any blocks.
    """

    op: Literal["look"] = "look"
    seq: Count
    n: Annotated[int, Field(ge=1, le=2**31)]
    names: Annotated[tuple[Annotated[str, Field(max_length=100)], ...], Field(max_length=256, strict=False)] = ()
    head: bool = False


_CLIENT: TypeAdapter[Open | Step | Look] = TypeAdapter(Annotated[Open | Step | Look, Field(discriminator="op")])


def encode(header: dict[str, Any] | _Message, payload: bytes = b"") -> bytes:
    """A message as bytes."""
    if isinstance(header, _Message):
        header = header.model_dump(exclude_defaults=True) | {"op": getattr(header, "op", "")}
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTH.pack(len(text)) + text + payload


def _cut(data: bytes) -> tuple[bytes, memoryview]:
    """The JSON and the payload. Raises GlgptError for a message that is cut off."""
    size = _LENGTH.unpack_from(data)[0] if len(data) >= _LENGTH.size else 0
    if not 2 <= size <= min(len(data) - _LENGTH.size, MOST_HEADER):
        raise GlgptError(f"a message of {len(data)} bytes has no whole JSON line")
    start = _LENGTH.size
    return data[start : start + size], memoryview(data)[start + size :]


def decode(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """What a server said. Raises GlgptError for what is no message."""
    text, payload = _cut(data)
    try:
        header = json.loads(text)
    except ValueError:
        raise GlgptError("a message whose JSON cannot be read") from None
    if not isinstance(header, dict):
        raise GlgptError(f"a message whose JSON is {written(header)}")
    return header, payload


def decode_request(data: bytes) -> tuple[Open | Step | Look, memoryview]:
    """What a client said. Raises GlgptError, naming the field, for what is no such message."""
    text, payload = _cut(data)
    try:
        return _CLIENT.validate_json(text), payload
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "message"
        raise GlgptError(quoted(f"{where}: {first['msg']}", 200)) from None
