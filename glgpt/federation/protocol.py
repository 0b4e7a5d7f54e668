"""Defines the messages between clients and the gateway: JSON texts, and numbers in binary frames of at most 1 MiB.

A client sends `join` first. The gateway answers with `welcome`. Whenever the client can train a round, the gateway
sends `round` and the parameters. The client announces its `update`, sends the frames that the gateway lacks, and
receives `accepted` or `rejected`. The values of all parameters are sent as one vector, in the order of the model's
parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from glgpt.errors import GlgptError, quoted
from glgpt.wire import int8

MAX_FRAME_BYTES = 1 << 20  # maximum bytes of a binary frame
MAX_TEXT_BYTES = 1 << 16  # maximum bytes of a JSON text from a client
BLOCK = 1024  # number of int8 values that share a scale
MAX_NAME, MAX_DEVICE = 40, 200  # maximum characters of a device's name, and of its GPU's name
MAX_COUNT = 1 << 53  # maximum of any integer in a message; JavaScript represents all integers up to 2^53 exactly
MAX_SECONDS = 30 * 24 * 3600.0  # maximum number of seconds that a client may report for a round
MAX_SHOWN = 1e12  # maximum of a rate, a time or a loss that is only displayed

Vector = NDArray[np.float32]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Dtype = Literal["f16", "f32", "int8", "exact"]
DTYPES = get_args(Dtype)
OUTER_LR, OUTER_MOMENTUM = 1.0, 0.8  # the best values in simulations: docs/design/decisions/training.md

# Close codes of a WebSocket, in addition to the standard ones. NO_TOKEN: the invitation is not valid, or the client
# trains with another program or tokenizer; FULL: the session is full, or another member took the client's seat;
# TOO_MUCH: the client sent too many or too long messages, or data that it had not announced; REMOVED: the host removed
# the client
NO_TOKEN, FULL, TOO_MUCH, REMOVED = 4403, 4429, 4413, 4410


class _Message(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, extra="forbid")


class Join(_Message):
    """A client's first message: identifies the client, and shows that the client trains with the session's program.

    `resume` is the key from an earlier `welcome`. `digest` and `tokenizer` are the hashes of the training program and
    of the tokenizer. With `own_text`, the client trains on a text that it provides.
    """

    type: Literal["join"] = "join"
    version: Literal[1] = 1
    token: Annotated[str, Field(max_length=4096)]
    resume: Annotated[str, Field(max_length=128)] = ""
    name: Annotated[str, Field(max_length=MAX_NAME)] = ""
    device: Annotated[str, Field(max_length=MAX_DEVICE)] = ""
    kind: Literal["browser", "desktop", "other"] = "other"
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    tokenizer: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    own_text: bool = False


class Update(_Message):
    """Announces a client's result of a round. The result follows in frames of `bytes` bytes in total.

    `loss` is in nats per token.
    """

    type: Literal["update"] = "update"
    round: Count
    attempt: Annotated[str, Field(max_length=64)]  # from the `round` message; identifies the weights before training
    tokens: Count
    steps: Count
    loss: float
    seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] = 0.0
    dtype: Dtype
    scale: Annotated[float, Field(ge=0)] = 1.0
    bytes: Count


class Progress(_Message):
    """Reports a client's progress, for the dashboard."""

    type: Literal["progress"] = "progress"
    step: Count
    loss: Annotated[float, Field(ge=0, le=MAX_SHOWN)] | None = None
    tokens_per_s: Annotated[float, Field(ge=0, le=MAX_SHOWN)] = 0.0


class Ping(_Message):
    """Requests a `pong` with the same number `n`; `ms` is the last round trip time that the client measured."""

    type: Literal["ping"] = "ping"
    n: Count
    ms: Annotated[float, Field(ge=0, le=MAX_SHOWN)] = 0.0


Said = Annotated[Join | Update | Progress | Ping, Field(discriminator="type")]
_SAID: TypeAdapter[Join | Update | Progress | Ping] = TypeAdapter(Said)


class _FromHost(BaseModel):
    """A message from the gateway. Fields that a desktop client does not read are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, extra="ignore")


Attempt = Annotated[str, Field(max_length=64)]
Reason = Annotated[str, Field(max_length=1000)]


class Welcome(_FromHost):
    """Admits a client. With `resume`, the client can rejoin as the same member."""

    resume: Annotated[str, Field(max_length=128)]
    name: Annotated[str, Field(max_length=200)]


class RoundOffer(_FromHost):
    """Offers a round to train. The weights follow in frames of `bytes` bytes in total."""

    round: Count
    attempt: Attempt
    step: Count  # training steps before this round
    lr: list[Annotated[float, Field(ge=0)]]  # the learning rate of each step
    seed: Annotated[int, Field(ge=0, lt=1 << 32)]
    shard: tuple[Count, Count]
    bytes: Count


class WrapUp(_FromHost):
    """Requests the result of the steps that a client has finished so far."""

    attempt: Attempt


class Ready(_FromHost):
    """Requests the frames of an update; the gateway already has the first `have` of them."""

    attempt: Attempt
    have: Count


class Answer(_FromHost):
    """Accepts or rejects an update."""

    type: Literal["accepted", "rejected"]
    attempt: Attempt | None = None
    norm: float = 0.0
    why: Reason = ""


class Pong(_FromHost):
    """Answers a ping."""


class Closed(_FromHost):
    """Reports the end of the session."""

    why: Reason = "the session ended"


class _Kind(_FromHost):
    type: Annotated[str, Field(max_length=40)]


HostSaid = Welcome | RoundOffer | WrapUp | Ready | Answer | Pong | Closed
_HOST_SAID: dict[str, type[HostSaid]] = {
    "welcome": Welcome, "round": RoundOffer, "wrap_up": WrapUp, "ready": Ready, "accepted": Answer, "rejected": Answer,
    "pong": Pong, "closed": Closed,
}  # fmt: skip


def parsed_from_host(text: str) -> HostSaid | None:
    """Returns a gateway's message, or None for a kind of message that the desktop client ignores.

    Raises a GlgptError that names the first invalid field.
    """
    try:
        kind = _HOST_SAID.get(_Kind.model_validate_json(text).type)
        return kind.model_validate_json(text) if kind else None
    except ValidationError as error:
        raise GlgptError(_first(error)) from None


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(map(str, first["loc"]))
    return quoted(f"{field or 'message'}: {first['msg']}", 200)


def parsed(text: str) -> Join | Update | Progress | Ping:
    """Returns a client's message. Raises a GlgptError that names the first invalid field."""
    try:
        return _SAID.validate_json(text)
    except ValidationError as error:
        raise GlgptError(_first(error)) from None


def close_reason(text: str) -> str:
    """Truncates a text to 120 bytes, since a WebSocket's close reason has at most 123."""
    return text.encode()[:120].decode(errors="ignore")


def frames(data: bytes | memoryview, size: int | None = None) -> Iterator[bytes]:
    """Splits `data` into frames of `size` bytes (None: `MAX_FRAME_BYTES`)."""
    view, size = memoryview(data), size or MAX_FRAME_BYTES
    for at in range(0, len(view), size):
        yield bytes(view[at : at + size])


def frame_count(size: int) -> int:
    """Returns the number of frames for `size` bytes."""
    return -(-size // MAX_FRAME_BYTES)


# -- vectors --------------------------------------------------------------------------------------------------------


def encoded_size(dtype: Dtype, count: int) -> int:
    """Returns the size in bytes of `count` encoded values."""
    if dtype == "int8":
        return int8.nbytes(count, BLOCK)
    return count * (2 if dtype == "f16" else 4)


def encode(dtype: Dtype, after: Vector, before: Vector) -> tuple[bytes, float]:
    """Returns the change from `before` to `after` as bytes, and the `scale` that `decode` needs (1 except for f16).

    `exact` stores `after` itself, so that no bit is lost. f16 stores the change divided by its largest magnitude, so
    that small changes are not rounded to 0; this magnitude is the `scale`. In int8, the bytes also hold a scale for
    each block of `BLOCK` values.
    """
    if dtype == "exact":
        return after.astype("<f4").tobytes(), 1.0
    change = after - before
    if dtype == "f32":
        return change.astype("<f4").tobytes(), 1.0
    if dtype == "f16":
        scale = float(np.abs(change).max(initial=0.0)) or 1.0
        return (change / np.float32(scale)).astype("<f2").tobytes(), scale
    return int8.encode(change, BLOCK), 1.0


def decode(dtype: Dtype, data: bytes, scale: float, before: Vector) -> Vector:
    """Returns a client's parameters after its steps, given the result of `encode` and the parameters `before`.

    Raises GlgptError for a wrong size, and for values that are not finite.
    """
    count = len(before)
    if len(data) != encoded_size(dtype, count):
        raise GlgptError(f"received {len(data)} bytes; {count} values of {dtype} take {encoded_size(dtype, count)}")
    if dtype == "exact":
        after = np.frombuffer(data, "<f4").astype(np.float32)
    elif dtype == "f32":
        after = before + np.frombuffer(data, "<f4")
    elif dtype == "f16":
        after = before + np.frombuffer(data, "<f2").astype(np.float32) * np.float32(scale)
    else:
        after = before + int8.decode(data, count, BLOCK)
    if not np.isfinite(after).all():
        raise GlgptError("the update holds a NaN or an infinity")
    return after


def flatten(arrays: dict[str, NDArray[Any]]) -> Vector:
    """Concatenates all parameters into one vector, in the order of `arrays`."""
    return np.concatenate([np.asarray(array, np.float32).reshape(-1) for array in arrays.values()])


def unflatten(vector: Vector, shapes: dict[str, tuple[int, ...]]) -> dict[str, Vector]:
    """Splits a vector into parameters, in the order of `shapes`. Raises GlgptError if the vector's length is wrong."""
    sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
    if sum(sizes.values()) != len(vector):
        raise GlgptError(f"received {len(vector)} values; the model has {sum(sizes.values())} parameters")
    found, at = {}, 0
    for name, shape in shapes.items():
        found[name] = vector[at : at + sizes[name]].reshape(shape)
        at += sizes[name]
    return found
