"""Defines recorded.json, a generation that a page shows until the model can run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from glgpt.page.documents.fields import Base64, Count

Probability = Annotated[float, Field(ge=0, le=1)]


class Candidate(TypedDict):
    """A likely token, with its probability before (`p`) and after (`sampled`) sampling settings are applied."""

    id: Count
    label: str
    p: Probability
    sampled: Probability


class RecordedToken(TypedDict):
    """A token of the text; a generated token also has probabilities and candidates."""

    id: Count
    text: str
    label: str
    p: NotRequired[Probability]
    sampled: NotRequired[Probability]
    top: NotRequired[list[Candidate]]


class RecordedAttention(TypedDict):
    """The attention weights of every head for the first tokens of the text."""

    tokens: Annotated[int, Field(ge=1, le=1024, description="number of tokens, counted from the start of the text")]
    data: Annotated[
        Base64,
        Field(
            description="a byte 255 * weight^0.4 for each layer, head, row (the token that attends) and column; row i "
            "ends at column i"
        ),
    ]


class RecordedMachine(TypedDict):
    """Pictures of the machine, the page's drawing of the whole model, for several tokens."""

    cell: Annotated[
        list[Annotated[int, Field(ge=1, le=4096)]],
        Field(min_length=2, max_length=2, description="width and height of a cell in texels"),
    ]
    at: Annotated[list[Count], Field(min_length=1, description="index of the token that each picture shows, ascending")]
    pictures: Annotated[
        list[Base64],
        Field(
            min_length=1,
            description="each picture has a byte per texel (127 for zero), row by row from the top; its columns of "
            "cells show, from left to right, the embedding, each block, and the logits",
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
