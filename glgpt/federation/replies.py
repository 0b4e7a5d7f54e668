"""Defines what a gateway sends: messages on WebSockets, and answers of its REST API.

`scripts/generate_schema.py` writes the page's types from these definitions. `protocol` defines the messages that
clients send, and those fields of a gateway's messages that a desktop client reads.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import NotRequired, TypedDict  # pydantic reads `typing.TypedDict` only from Python 3.12 on

from glgpt.federation.protocol import Dtype


class MemberRow(TypedDict):
    """A device of the session, as all members see it."""

    number: int
    name: str
    kind: str
    step: int  # steps done in the open round
    loss: float | None
    tokens_per_s: float
    connections: int  # number of open sockets; 0: offline
    said: str  # the result of its last update
    aside: str  # why the device is set aside (all its updates are rejected); empty: it is not set aside


class MemberStatus(MemberRow):
    """A device of the session, as its host sees it."""

    device: str  # the name of its GPU
    own_text: bool
    strikes: int  # number of consecutive invalid updates
    accepted: int  # number of accepted updates
    answered: bool  # True if the open round has this device's update
    norm: float | None
    ping_ms: float
    bytes_in: int
    bytes_out: int


class RoundStatus(TypedDict):
    """The open round."""

    number: int
    closed: bool
    answers: int  # number of accepted updates
    asked: int  # number of members that were offered the round
    seconds_left: float


class RoundFigures(TypedDict):
    """A finished round. `validation_loss` and `sample` are missing if the model was not evaluated after this round.

    In `welcome`, only the latest rounds have a `sample`.
    """

    round: int
    clients: NotRequired[int]
    tokens: NotRequired[int]
    loss: NotRequired[float]
    validation_loss: NotRequired[float]
    sample: NotRequired[str]
    seconds: NotRequired[float]


class State(TypedDict):
    """The fields of a session that change while it runs."""

    round: RoundStatus | None
    done: int  # number of finished rounds
    paused: bool
    members: list[MemberRow]


# Messages on a socket


class WelcomeMessage(State):
    """Admits a client. With `resume`, the client can rejoin as the same member."""

    type: Literal["welcome"]
    member: int
    resume: str
    name: str
    rounds: list[RoundFigures]
    aside: str


class StateMessage(State):
    """Reports the state of the session, once a second."""

    type: Literal["state"]


class RoundMessage(TypedDict):
    """Offers a round to train. The parameters follow in frames of `bytes` bytes in total."""

    type: Literal["round"]
    round: int
    attempt: str
    steps: int
    step: int  # training steps before this round
    lr: list[float]  # the learning rate of each step
    seconds_left: float
    seed: int
    shard: tuple[int, int]
    dtype: Dtype
    bytes: int


class WrapUpMessage(TypedDict):
    """Requests the result of the steps that a client has finished so far."""

    type: Literal["wrap_up"]
    attempt: str


class FramesMessage(TypedDict):
    """Reports that `have` frames of an update have arrived; `ready` requests the remaining frames."""

    type: Literal["ready", "ack"]
    attempt: str
    have: int


class AnswerMessage(TypedDict):
    """Accepts or rejects an update. Without `attempt`, rejects an invalid message instead."""

    type: Literal["accepted", "rejected"]
    attempt: NotRequired[str]
    norm: NotRequired[float]
    why: NotRequired[str]
    aside: NotRequired[str]


class FiguresMessage(TypedDict):
    """Sends the latest finished rounds."""

    type: Literal["figures"]
    rounds: list[RoundFigures]


class PongMessage(TypedDict):
    """Answers a ping."""

    type: Literal["pong"]
    n: int


class ClosedMessage(TypedDict):
    """Reports the end of the session."""

    type: Literal["closed"]
    why: str


GatewayMessage = (
    WelcomeMessage
    | StateMessage
    | RoundMessage
    | WrapUpMessage
    | FramesMessage
    | AnswerMessage
    | FiguresMessage
    | PongMessage
    | ClosedMessage
)


# Answers to REST calls


class PrivacyBudget(TypedDict):
    """The privacy budget that the finished rounds have spent; empty if the session adds no noise."""

    epsilon: NotRequired[float]
    delta: NotRequired[float]


class SessionStatus(PrivacyBudget):
    """A session, as its host sees it."""

    session: str
    name: str
    rounds: int
    local_steps: int
    done: int
    paused: bool
    quorum: int
    combined_by: str  # the strategy and what it does, such as "fedavg (mean weighted by tokens)"
    parameters: int
    round: RoundStatus | None
    members: list[MemberStatus]


class Status(SessionStatus):
    """The answer that the dashboard polls."""

    page: bool  # True if the host serves a page with which browsers can join
    history: list[RoundFigures]


class Invitation(TypedDict):
    """An invitation; `digest` is the hash of its token."""

    digest: str
    expires: float  # seconds since the epoch
    uses: int | None  # number of devices that may still join with it; None: any number
    kind: str
    revoked: bool


class TokenIds(TypedDict):
    """The data type and the number of the text's token ids."""

    dtype: str
    count: int


class TermsSettings(TypedDict):
    """The training settings that a page needs. The answer has all other settings too."""

    seed: int
    tokenizer: str


class Terms(TypedDict):
    """The terms of a session, for invited devices. The answer has all other fields of `Session` too."""

    id: str
    name: str
    rounds: int
    local_steps: int
    parameters: int
    digest: str
    tokenizer: str
    dtype: Dtype
    settings: TermsSettings
    shapes: list[tuple[str, list[int]]]
    ids: TokenIds


class InvitationList(TypedDict):
    """All invitations, for the host."""

    invitations: list[Invitation]


class TokenAnswer(TypedDict):
    """A new token for the host."""

    token: str


class NewInvitation(TokenAnswer):
    """The token of a new invitation, and the token's hash."""

    digest: str


class QrCode(TypedDict):
    """The rows of a QR code, as strings with one character per module: "1" is dark."""

    rows: list[str]


class RefusedAnswer(TypedDict):
    """Reports why a REST call failed."""

    error: str


RestAnswer = Status | InvitationList | TokenAnswer | NewInvitation | Terms | QrCode | RefusedAnswer
