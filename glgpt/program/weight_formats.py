"""Describes the formats of weights' textures: one for the whole model, or one for each tensor, as stored in a file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from glgpt.program.formats import AS_STORED, FORMATS


@dataclass(frozen=True)
class StoredFormats:
    """The formats of textures that hold the numbers of a file exactly.

    `formats` are pairs (name of a parameter, name of its format). `types` are the file's names for the types of its
    matrices; the type with the most values comes first. `activations` is the format of the inputs of products: f16, as
    with quantised formats, or f32 if the weight of any product needs f32, because a product with f16 inputs would round
    that weight.
    """

    formats: tuple[tuple[str, str], ...]
    types: tuple[str, ...]
    activations: str

    @cached_property
    def by_name(self) -> dict[str, str]:
        """Returns the name of the format of each parameter."""
        return dict(self.formats)

    def __str__(self) -> str:
        return f"{AS_STORED} ({', '.join(self.types)})"


WeightFormats = str | StoredFormats  # a str is a key of `FORMATS`


def activations(formats: WeightFormats) -> str:
    """Returns the name of the format in which the inputs of products are stored."""
    return formats.activations if isinstance(formats, StoredFormats) else FORMATS[formats].activations or formats
