"""Defines the documents of a page without weights: player.json, and the file of each shape."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from glgpt.models.views import Family, ListedActivation
from glgpt.page.documents.fields import Digest, Dtype, Items, ListedFile, Size, Text
from glgpt.page.documents.manifest import Config, RecordingFiles, Tuning

MAX_SHAPE_BYTES = 1 << 28
ShapeBytes = Annotated[int, Field(ge=1, le=MAX_SHAPE_BYTES)]
Pair = Annotated[list[int], Field(min_length=2, max_length=2)]
# A key or field, its value (or values), and true if a file may lack it
Expected = Annotated[list[Any], Items(tuple[str, Any, bool])]
Neutral = Annotated[list[Any], Items(tuple[str, Any])]


class GgufKeys(TypedDict):
    """The metadata by which a page recognises a GGUF file."""

    architecture: str
    values: Annotated[list[Expected], Field(description="key, value, whether a file may lack it")]
    neutral: Annotated[
        list[Neutral],
        Field(description="further keys, and the only value that a file may have; null: none"),
    ]
    divisors: list[float] | None


class ConfigFields(TypedDict):
    """The fields by which a page recognises a config.json."""

    values: Annotated[list[Expected], Field(description="field, values that mean the same, whether a file may lack it")]
    rope: dict[str, Any] | None


class ShapeFile(TypedDict):
    """The size and SHA-256 of a file of shapes."""

    bytes: ShapeBytes
    sha256: Digest


class ShapeEntry(ShapeFile):
    """A shape, by which a page recognises its files."""

    name: Text
    folder: Annotated[str, Field(pattern="^shapes/[a-z0-9-]+$")]
    parameters: Size
    positions: Annotated[
        list[Size], Field(min_length=2, max_length=2, description="positions of the page's caches, and of the model")
    ]
    learned: Annotated[bool, Field(description="true if positions are a learned table")]
    vocab: Size
    gguf: GgufKeys | None
    config: ConfigFields


class PlayerIndex(TypedDict):
    """The shapes for which a page without weights has programs."""

    schema: Literal[1]
    glgpt: str
    holds: Annotated[
        dict[str, list[str]],
        Field(description="Format of a texture -> GGUF's types that it holds without a change of any value"),
    ]
    sources: Annotated[ShapeFile, Field(description="The file of lines that the shaders of all programs share")]
    shapes: Annotated[list[ShapeEntry], Field(min_length=1)]


# The file of a shape


class CheckpointTensor(TypedDict):
    """The tensor of a checkpoint's folder that holds a parameter."""

    name: str
    shape: list[int]
    transposed: bool


class FileTensor(TypedDict):
    """The tensor of a GGUF file that holds a parameter."""

    name: str
    shape: list[int]
    transposed: bool
    exchanged: tuple[int, int, int, int] | None
    shift: float


class ShapeParameter(TypedDict):
    """A parameter of a shape: see `glgpt.page.player.expected`."""

    name: str
    checkpoint: CheckpointTensor
    rows: Annotated[
        Pair | None,
        Field(description="The first row of the tensor that is the parameter's, and the end of its rows; null: all"),
    ]
    matrix: Annotated[Pair, Field(description="Rows and columns of the texture before heads are padded")]
    heads: Annotated[
        Annotated[list[int], Items(tuple[int, int, int, int, int])] | None,
        Field(
            description="Axis of the texture (0: rows), heads, their width without and with padding, and kinds of "
            "heads in turn"
        ),
    ]
    product: bool
    gguf: FileTensor | None


class MixBytes(TypedDict):
    """The bytes of the weights' textures, and of all."""

    weights: int
    all: int


class PageMix(TypedDict):
    """A mix of types that the shape has programs for."""

    name: str
    dtype: Dtype
    formats: dict[str, Dtype]
    bytes: MixBytes
    recordings: list[RecordingFiles]


class ShapeManifest(TypedDict):
    """The manifest's fields that do not depend on the weights."""

    schema: Literal[3]
    glgpt: str
    parameters: Size
    config: Config
    tuning: Tuning
    activations: list[ListedActivation]
    family: Family
    patterns: list[str]


class ShapeDescription(TypedDict):
    """The content of a shape's file."""

    schema: Literal[1]
    manifest: ShapeManifest
    parameters: list[ShapeParameter]
    tied: dict[str, str]
    buffers: str
    prefix: str
    mixes: list[PageMix]
    files: dict[str, ListedFile]
