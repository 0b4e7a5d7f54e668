"""Defines packed programs, which `glgpt.page.player.packed` writes and describes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from glgpt.program.layout import View
from glgpt.program.spec import ROLES, TEXTURE_FORMATS

TextureFormat = Annotated[str, Field(json_schema_extra={"enum": list(TEXTURE_FORMATS)})]
Scalar = Annotated[str, Field(json_schema_extra={"enum": ["int", "float"]})]
Role = Annotated[str, Field(json_schema_extra={"enum": list(ROLES)})]

# A number is the block that `~` stands for from then on; a pass is its kind, its label and the names of its textures.
Step = Annotated[
    int | list[int | str], Field(json_schema_extra={"tsType": "number | readonly [kind: number, ...names: string[]]"})
]
# name, width, height, layers, format, role
PackedTexture = tuple[str, int, int, int, TextureFormat, Role]
# shader, samplers, outputs (number of the output, layer), viewport, row, flops, nbytes, slices, clear, first_column,
# keys
Kind = tuple[str, list[str], list[tuple[int, int]], tuple[int, int], str | None, int, int, int, bool, int, int]


class PackedEntry(TypedDict):
    """An entry of a program, with short passes."""

    name: str
    inputs: list[str]
    outputs: dict[str, View]
    ping_pong: list[tuple[str, str]]
    passes: list[Step]


class PackedFields(TypedDict):
    """The fields of a packed program to which its entries refer."""

    schema: Literal[2]
    scalars: dict[str, Scalar]
    textures: list[PackedTexture]
    views: dict[str, View]
    lines: list[str]
    shaders: Annotated[
        dict[str, list[int]], Field(description="runs over the lines: first line, number of lines, and so on")
    ]


class Packed(PackedFields):
    """A packed program."""

    kinds: list[Kind]
    entries: list[PackedEntry]
