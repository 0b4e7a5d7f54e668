"""Defines recorded.json, a generation that a page shows until the model can run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from glgpt.page.documents.fields import Base64, Count

Probability = Annotated[float, Field(ge=0, le=1)]


class Candidate(TypedDict):
    """A likely token, with its probability by the model and the one after sampling settings."""

    id: Count
    label: str
    p: Probability
    sampled: Probability


class RecordedToken(TypedDict):
    """A token of the text; one that was generated has probabilities and candidates."""

    id: Count
    text: str
    label: str
    p: NotRequired[Probability]
    sampled: NotRequired[Probability]
    top: NotRequired[list[Candidate]]


class RecordedAttention(TypedDict):
    """The attention over the first tokens."""

    tokens: Annotated[int, Field(ge=1, le=1024, description="number of first tokens covered")]
    data: Annotated[
        Base64,
        Field(
            description="bytes 255 * weight^0.4 of the pairs on and below the diagonal, [layers][heads][rows][columns]"
        ),
    ]


class RecordedMachine(TypedDict):
    """Pictures of the machine as it computes some of the tokens."""

    cell: Annotated[
        list[Annotated[int, Field(ge=1, le=4096)]],
        Field(min_length=2, max_length=2, description="width and height of a cell in texels"),
    ]
    at: Annotated[list[Count], Field(min_length=1, description="the token of each picture, ascending")]
    pictures: Annotated[
        list[Base64],
        Field(
            min_length=1,
            description="bytes, 127 for zero, rows from the top: a column of cells for the embedding, each block and "
            "the logits",
        ),
    ]


class Recorded(TypedDict):
    """A generation that a page shows until the model can run."""

    schema: Literal[1]
    prompt: str
    seed: Count
    given: Annotated[int, Field(ge=1, description="number of tokens of the prompt")]
    tokens: Annotated[list[RecordedToken], Field(min_length=2)]
    attention: RecordedAttention
    machine: RecordedMachine
