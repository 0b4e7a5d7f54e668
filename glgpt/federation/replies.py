"""Defines what a gateway sends: the messages on its sockets and the answers to its REST calls.

`scripts/generate_schema.py` writes the page's types from these definitions. `protocol` has the messages of clients, and
the fields of a gateway's messages that a desktop client reads.
"""

from __future__ import annotations

from typing import Literal

from typing_extensions import NotRequired, TypedDict  # pydantic reads those of `typing` from Python 3.12 on

from glgpt.federation.protocol import Dtype


class MemberRow(TypedDict):
    """A device of the session, as all members see it."""

    number: int
    name: str
    kind: str
    step: int  # done in the open round
    loss: float | None
    tokens_per_s: float
    connections: int  # number of open sockets; 0: offline
    said: str  # the result of its last update
    aside: str  # why its updates are rejected; empty: they are accepted


class MemberStatus(MemberRow):
    """A device of the session, as its host sees it."""

    device: str  # the name of its GPU
    own_text: bool
    strikes: int
    accepted: int  # number of accepted updates
    answered: bool  # True if the open round has its update
    norm: float | None
    ping_ms: float
    bytes_in: int
    bytes_out: int


class RoundStatus(TypedDict):
    """The open round."""

    number: int
    closed: bool
    answers: int
    asked: int
    seconds_left: float


class RoundFigures(TypedDict):
    """A finished round; its validation and sample follow some seconds after the rest."""

    round: int
    clients: NotRequired[int]
    tokens: NotRequired[int]
    loss: NotRequired[float]
    validation_loss: NotRequired[float]
    sample: NotRequired[str]
    seconds: NotRequired[float]


class State(TypedDict):
    """Holds what changes in a session while it runs."""

    round: RoundStatus | None
    done: int  # finished rounds
    paused: bool
    members: list[MemberRow]


# Messages on a socket


class WelcomeMessage(State):
    """Admits a client; with `resume` it can rejoin as the same member."""

    type: Literal["welcome"]
    member: int
    resume: str
    name: str
    rounds: list[RoundFigures]
    aside: str


class StateMessage(State):
    """Reports the state, once a second."""

    type: Literal["state"]


class RoundMessage(TypedDict):
    """Offers a round to train; `bytes` of parameters follow in frames."""

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
    """Asks a client to send its result so far."""

    type: Literal["wrap_up"]
    attempt: str


class FramesMessage(TypedDict):
    """Reports how many frames of an update have arrived; `ready` asks for the others."""

    type: Literal["ready", "ack"]
    attempt: str
    have: int


class AnswerMessage(TypedDict):
    """Accepts or rejects an update; without `attempt`, rejects a message that is not valid."""

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
    """The privacy budget that finished rounds have spent; empty without noise."""

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
    combined_by: str  # the strategy and what it does, such as "fedavg (mean by tokens)"
    parameters: int
    round: RoundStatus | None
    members: list[MemberStatus]


class Status(SessionStatus):
    """The answer that the dashboard polls."""

    page: bool  # True if the host serves a page for browsers to join with
    history: list[RoundFigures]


class Invitation(TypedDict):
    """An invitation, by the hash of its token."""

    digest: str
    expires: float  # seconds since the epoch
    uses: int | None  # devices that may still join with it; None: any number
    kind: str
    revoked: bool


class TokenIds(TypedDict):
    """The type and number of the text's ids."""

    dtype: str
    count: int


class TermsSettings(TypedDict):
    """The settings of the training that a page needs; the answer has all of them."""

    seed: int
    tokenizer: str


class Terms(TypedDict):
    """The public facts of a session, for invited devices. The answer also has the other fields of `Session`."""

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
    """A new token of a host."""

    token: str


class NewInvitation(TokenAnswer):
    """A new invitation's token and its hash."""

    digest: str


class QrCode(TypedDict):
    """The rows of a QR code, one character per module: "1" is dark."""

    rows: list[str]


class RefusedAnswer(TypedDict):
    """Why a call failed."""

    error: str


RestAnswer = Status | InvitationList | TokenAnswer | NewInvitation | Terms | QrCode | RefusedAnswer
