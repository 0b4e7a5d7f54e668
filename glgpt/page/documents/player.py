"""Defines the documents of a page without weights: player.json, and the file of each shape.

A shape is an architecture with its sizes, such as that of SmolLM2-135M, without weights. A mix, such as Q4_K_M of
llama.cpp, defines the type of each tensor of a file. A page recognises the shape and the mix of a file that its visitor
opens.
"""

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
# Three items: a key or field; its value, or a list of the values that it may have; true if a file may lack it
Expected = Annotated[list[Any], Items(tuple[str, Any, bool])]
Neutral = Annotated[list[Any], Items(tuple[str, Any])]  # a key, and its only allowed value


class GgufKeys(TypedDict):
    """The metadata by which a page recognises that a GGUF file has a shape.

    Keys are without the architecture's prefix, such as "llama.".
    """

    architecture: str
    values: Annotated[
        list[Expected], Field(description="for each key: its name, its value, and true if a file may lack the key")
    ]
    neutral: Annotated[
        list[Neutral],
        Field(description="for each optional key: its name, and its only allowed value; null: the key must be absent"),
    ]
    divisors: list[float] | None  # values of the tensor rope_freqs.weight; None: the tensor must be absent


class ConfigFields(TypedDict):
    """The fields by which a page recognises that a config.json has a shape."""

    values: Annotated[
        list[Expected],
        Field(
            description="for each field: its name, the values that it may have, and true if a file may lack the field"
        ),
    ]
    rope: dict[str, Any] | None  # `rope_parameters` of the config.json; None: the config.json lacks this field


class ShapeFile(TypedDict):
    """The size and SHA-256 of a file that player.json refers to."""

    bytes: ShapeBytes
    sha256: Digest


class ShapeEntry(ShapeFile):
    """A shape: the file that describes it, and the fields by which a page recognises model files of this shape."""

    name: Text
    folder: Annotated[str, Field(pattern="^shapes/[a-z0-9-]+$")]
    parameters: Size  # number of learned values
    positions: Annotated[
        list[Size],
        Field(min_length=2, max_length=2, description="maximum positions: of the page's caches, then of the model"),
    ]
    learned: Annotated[bool, Field(description="true if the model has a table of learned position embeddings")]
    vocab: Size  # number of token ids
    gguf: GgufKeys | None  # None: GGUF has no architecture for the shape
    config: ConfigFields


class PlayerIndex(TypedDict):
    """The shapes for which a page without weights has programs."""

    schema: Literal[1]
    glgpt: str
    holds: Annotated[
        dict[str, list[str]],
        Field(description="For each storage format, the types of GGUF whose values the format holds without a change"),
    ]
    sources: Annotated[
        ShapeFile, Field(description="The file of GLSL source lines from which all programs' shaders are assembled")
    ]
    shapes: Annotated[list[ShapeEntry], Field(min_length=1)]


# The file of a shape


class CheckpointTensor(TypedDict):
    """The tensor that holds a parameter in the files of a checkpoint's folder, such as a safetensors file."""

    name: str
    shape: list[int]
    transposed: bool  # true if the texture's rows are the tensor's columns


class FileTensor(TypedDict):
    """The tensor that holds a parameter in a GGUF file."""

    name: str
    shape: list[int]
    transposed: bool  # true if the texture's rows are the tensor's columns
    # Sizes of four axes into which the rows of the GGUF file's tensor divide. Exchanging the two middle axes gives the
    # order of rows in a Hugging Face checkpoint. None: the GGUF file has this order.
    exchanged: tuple[int, int, int, int] | None
    shift: float  # number to add to each value of the tensor


class ShapeParameter(TypedDict):
    """A parameter of a shape, and the tensors that hold it: see `glgpt.page.player.expected`."""

    name: str
    checkpoint: CheckpointTensor
    rows: Annotated[
        Pair | None,
        Field(description="The rows of the tensor that hold the parameter: [first, end), end excluded; null: all rows"),
    ]
    matrix: Annotated[Pair, Field(description="Rows and columns of the texture's matrix before heads are padded")]
    heads: Annotated[
        Annotated[list[int], Items(tuple[int, int, int, int, int])] | None,  # None: no axis consists of heads
        Field(
            description="Five numbers: the axis of the texture that consists of heads (0: rows); the number of heads; "
            "the width of a head without padding; its width with padding; the number of kinds of heads, such as "
            "queries and keys, that alternate in the checkpoint (1: no alternation)"
        ),
    ]
    product: bool  # true if the parameter is the right operand of a matrix product
    gguf: FileTensor | None


class MixBytes(TypedDict):
    """The bytes of textures of the program that generates text: of those with weights, and of all."""

    weights: int
    all: int


class PageMix(TypedDict):
    """A mix (the choice of a storage format for each weight) for which the shape has programs."""

    name: str
    dtype: Dtype  # format of most weights
    formats: dict[str, Dtype]  # storage format of each parameter, by the parameter's name
    bytes: MixBytes
    recordings: list[RecordingFiles]


class ShapeManifest(TypedDict):
    """The fields of manifest.json that do not depend on a model's weights."""

    schema: Literal[3]
    glgpt: str
    parameters: Size
    config: Config
    tuning: Tuning
    activations: list[ListedActivation]
    family: Family
    patterns: list[str]


class ShapeDescription(TypedDict):
    """The content of the file of a shape."""

    schema: Literal[1]
    manifest: ShapeManifest
    parameters: list[ShapeParameter]
    tied: dict[str, str]  # name of a tensor that may be in a checkpoint as a copy -> name of the original tensor
    buffers: str  # regular expression for the names, without the prefix, of tensors that are not parameters
    prefix: str  # prefix of the names of a checkpoint's tensors, except the head's
    mixes: list[PageMix]
    files: dict[str, ListedFile]  # files of the programs of all mixes
