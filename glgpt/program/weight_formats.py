"""The format of each parameter's texture: one for all weights, or as stored in a file, with one for each tensor."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from glgpt.program.formats import AS_STORED, FORMATS


@dataclass(frozen=True)
class StoredFormats:
    """The formats of textures that hold a file's numbers exactly: pairs of a parameter's name and its format.

    `types` are the names of the file's own types of its matrices, the one with most values first. The inputs of
    products are f16 as with quantised formats. If the weight of one product needs f32, all products are f32, since one
    with f16 inputs would round that weight.
    """

    formats: tuple[tuple[str, str], ...]
    types: tuple[str, ...]
    activations: str

    @cached_property
    def by_name(self) -> dict[str, str]:
        """Returns the format of each parameter."""
        return dict(self.formats)

    def __str__(self) -> str:
        return f"{AS_STORED} ({', '.join(self.types)})"


WeightFormats = str | StoredFormats  # a str is a key of `FORMATS`


def activations(formats: WeightFormats) -> str:
    """Returns the format of the inputs of products."""
    return formats.activations if isinstance(formats, StoredFormats) else FORMATS[formats].activations or formats
