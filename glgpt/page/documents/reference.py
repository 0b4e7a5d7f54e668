"""Defines reference.json, with which a page checks its results."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from glgpt.page.documents.fields import Base64, Count
from glgpt.program.tolerance import PageTolerance


class ReferenceLogits(TypedDict):
    """The logits of the prompt's tokens from index `first` on, as float32 values."""

    first: Count
    data: Base64


class Reference(TypedDict):
    """A desktop run that a page repeats: a prompt, its greedy continuation, logits, and last id's activations."""

    schema: Literal[2]
    prompt: str | None
    ids: Annotated[list[Count], Field(min_length=1)]
    greedy: list[Count]
    device: str
    tolerance: PageTolerance
    logits: ReferenceLogits
    activations: dict[str, Base64]
