"""Defines packed programs, a compact form of programs. `glgpt.page.player.packed` explains the form and writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from glgpt.program.layout import View
from glgpt.program.spec import ROLES, TEXTURE_FORMATS

TextureFormat = Annotated[str, Field(json_schema_extra={"enum": list(TEXTURE_FORMATS)})]
Scalar = Annotated[str, Field(json_schema_extra={"enum": ["int", "float"]})]
Role = Annotated[str, Field(json_schema_extra={"enum": list(ROLES)})]

# A list is a pass: the index of its kind in `kinds`, its label, and the names of its textures. An integer is the number
# of a block. In the names of the passes that follow the integer, `~` stands for this number.
Step = Annotated[
    int | list[int | str], Field(json_schema_extra={"tsType": "number | readonly [kind: number, ...names: string[]]"})
]
# name, width, height, layers, format, role
PackedTexture = tuple[str, int, int, int, TextureFormat, Role]
# Fields of `Pass`, in this order: shader, samplers, outputs (index of the output texture, layer), viewport, row, flops,
# nbytes, slices, clear, first_column, keys
Kind = tuple[
    str, tuple[str, ...], tuple[tuple[int, int], ...], tuple[int, int], str | None, int, int, int, bool, int, int
]


class PackedEntry(TypedDict):
    """An entry of a program, with packed passes."""

    name: str
    inputs: list[str]
    outputs: dict[str, View]
    ping_pong: list[tuple[str, str]]
    passes: list[Step]


class PackedFields(TypedDict):
    """The fields of a packed program except its entries and the kinds of their passes."""

    schema: Literal[2]
    scalars: dict[str, Scalar]
    textures: list[PackedTexture]
    views: dict[str, View]
    lines: list[str]  # lines that are not in sources.bin
    shaders: Annotated[
        dict[str, list[int]],
        Field(description="runs [first line, number of lines, ..]; the lines of sources.bin come first, then `lines`"),
    ]


class Packed(PackedFields):
    """A packed program."""

    kinds: list[Kind]
    entries: list[PackedEntry]
