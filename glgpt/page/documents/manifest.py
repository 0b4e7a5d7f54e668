"""Defines manifest.json, which lists the files of an exported page and describes its model.

A kernel is the block of rows and columns of a matrix product that one fragment computes. A recording is the set of
programs for one kernel and one kind of device. A probe is a program whose time the page measures to choose a recording.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, with_config
from typing_extensions import NotRequired, TypedDict

from glgpt.models.views import Family, ListedActivation
from glgpt.page.documents.fields import (
    OPEN,
    Count,
    Digest,
    Dtype,
    FileBytes,
    FileName,
    Items,
    ListedFile,
    Size,
    Text,
)
from glgpt.wire.hidden import Format

MAX_VALUES = 1 << 24  # maximum number of tokens in a vocabulary or in a context
MAX_BLOCKS = 1 << 10
MAX_WIDTH = 1 << 18
MAX_HEAD_WIDTH = 1 << 16


@with_config(OPEN)
class Config(TypedDict):
    """The sizes of the model; further fields are those of the model's family."""

    vocab_size: Annotated[int, Field(ge=1, le=MAX_VALUES)]
    n_positions: Annotated[int, Field(ge=1, le=MAX_VALUES)]
    n_layer: Annotated[int, Field(ge=1, le=MAX_BLOCKS)]
    n_head: Annotated[int, Field(ge=1, le=MAX_BLOCKS)]
    n_embd: Annotated[int, Field(ge=1, le=MAX_WIDTH)]
    d_head: Annotated[int, Field(ge=1, le=MAX_HEAD_WIDTH)]


class RecordingFiles(TypedDict):
    """The files of a recording and of its probes.

    `draw_buffers` is the number of outputs of a pass that the device must support. In a one-row product (as in decoding
    a token), a fragment takes neighbouring columns if `rows` is "contiguous", and distant ones if it is "strided".
    """

    draw_buffers: Annotated[int, Field(ge=1, le=32)]
    kernel: str
    rows: Literal["strided", "contiguous"]
    blends: NotRequired[Annotated[bool, Field(description="only for devices that blend floats (EXT_float_blend)")]]
    pairs: NotRequired[
        Annotated[
            bool,
            Field(
                description="only for devices that compute separate derivatives for each column of a quad, which is a "
                "block of 2 x 2 pixels"
            ),
        ]
    ]
    generate: FileName  # generates text
    capture: FileName  # outputs every activation
    product: FileName  # probe: a product of several rows with this kernel
    row: FileName  # probe: one-row products with these `rows`
    interventions: NotRequired[FileName]  # generates text with changed activations
    several: NotRequired[FileName]  # continues several texts with a common prompt at once
    masked: NotRequired[FileName]  # chooses a token among those that a constraint allows


class Tuning(TypedDict):
    """Constants shared by the desktop and the page. A chunk is a group of tokens that the model reads at once."""

    one_token: Annotated[
        float,
        Field(gt=0, description="cost of a forward pass of a single token; the unit is the cost of a token in a chunk"),
    ]
    one_captured: Annotated[float, Field(gt=0, description="the same cost in a program that captures all activations")]
    per_chunk: Annotated[
        float, Field(ge=0, description="cost of a chunk in addition to that of its tokens, in the same unit")
    ]
    panels_pay: Annotated[
        float,
        Field(
            gt=0,
            description="panels (strips of weights) are used if a one-row product with panels takes less than this "
            "share of the time without panels",
        ),
    ]
    steady: Annotated[
        float,
        Field(
            ge=1,
            description="times are steady if the second-shortest is less than this many times the shortest",
        ),
    ]
    draw_flops: Annotated[float, Field(gt=0, description="maximum number of floating-point operations in one draw")]
    ahead: Annotated[int, Field(ge=1, le=1024, description="maximum number of tokens whose passes are queued at once")]
    texts: NotRequired[
        Annotated[int, Field(ge=1, le=256, description="number of texts that the program `several` continues at once")]
    ]


class ExamplePrompt(TypedDict):
    """A text to start from, and the caption of its button."""

    title: Text
    text: Text


class TemplateSource(TypedDict):
    """The chat template of an instruct model."""

    source: Annotated[str, Field(min_length=1, description="The Jinja template")]
    tools: NotRequired[
        Annotated[str, Field(min_length=1, description="Template for messages with tools, if different")]
    ]
    named: Annotated[
        dict[str, str], Field(description="The special tokens that the template reads, by role, such as bos_token")
    ]
    special: Annotated[
        dict[str, Count], Field(description="The id of each special token; only the template may write these tokens")
    ]


class ShownHead(TypedDict):
    """The attention head that the page's tour shows for a text, with a question about the head and the answer."""

    layer: Count
    head: Count
    text: str
    question: str
    answer: str


class PageSampling(TypedDict):
    """The sampling settings of a page until a visitor changes them. A missing `top_k`, `top_p` or `min_p` is off."""

    temperature: Annotated[float, Field(ge=0)]
    top_k: NotRequired[Count]
    top_p: NotRequired[float]
    min_p: NotRequired[float]


class PromptFields(TypedDict):
    """The manifest's fields about prompts."""

    prompts: Annotated[
        list[ExamplePrompt],
        Field(description="Texts to start from; the page opens with the first. Empty without a tokenizer"),
    ]
    chat: NotRequired[
        Annotated[
            Annotated[list[str | int | None], Field(json_schema_extra={"contains": {"type": "null"}})] | None,
            Field(
                description="The chat format of an instruct model, in order: ids of special tokens, texts, and null, "
                "which stands for the message"
            ),
        ]
    ]
    chat_template: NotRequired[TemplateSource | None]
    sampling: NotRequired[PageSampling]
    head: NotRequired[ShownHead | None]


class SplitServer(TypedDict):
    """The server that can run a part of the model (blocks, and perhaps the head), and a description of that part."""

    server: Annotated[str, Field(pattern="^wss?://")]
    wire: Format  # number format of hidden states that are sent
    digest: str  # identifies the model
    rest: Annotated[
        str | None,
        Field(
            description="The part that the server runs; null: the page holds all blocks, and its visitor chooses which "
            "of them the server runs"
        ),
    ]
    head: Annotated[
        Literal["server", "page"], Field(description="The side that computes the logits if `rest` is not null")
    ]
    stream: Annotated[
        list[str],
        Field(
            min_length=3,
            description="Names of the residual stream's states: after the embedding, and after each block of the model",
        ),
    ]
    activations: list[ListedActivation]  # those that the server computes; empty if `rest` is null


Piece = Annotated[list[Any], Items(tuple[str, Count, Count, Size])]


class Shard(TypedDict):
    """A file of weights.

    A piece is a list [texture, layer, first row, number of rows] and stands for these rows of texels. The file holds
    the pieces one after the other. Rows have the layout of a texture without panels (strips of contiguous columns).
    """

    file: FileName
    bytes: FileBytes
    sha256: Digest
    pieces: Annotated[list[Piece], Field(min_length=1)]


class Manifest(PromptFields):
    """The contents of an exported folder."""

    schema: Literal[3]
    glgpt: str
    export_id: NotRequired[
        Annotated[str, Field(description="id of the export; index.html contains the id of the export it belongs to")]
    ]
    model: str
    dtype: Annotated[Dtype, Field(description="the format of most weights")]
    stored: NotRequired[
        Annotated[
            list[str] | None,
            Field(
                description="tensor types of the model's GGUF file, if the page has the file's weights unchanged; the "
                "first is the type of most weights"
            ),
        ]
    ]
    parameters: NotRequired[Size]
    source: NotRequired[Annotated[str | None, Field(description="address of the page's source code, http or https")]]
    trained_on: NotRequired[
        Annotated[
            str | None,
            Field(description="the training data in a few words, such as: the plays of Shakespeare"),
        ]
    ]
    config: Config
    recordings: Annotated[list[RecordingFiles], Field(min_length=1)]
    patterns: NotRequired[
        Annotated[
            list[str],
            Field(
                description="Names of the attention patterns that interventions can set; in ops.set_pattern, the first "
                "has the number 1"
            ),
        ]
    ]
    tuning: Tuning
    tokenizer: FileName | None
    eos: NotRequired[Annotated[list[Count], Field(max_length=64, description="ids that end a text")]]
    reference: Annotated[
        FileName | None, Field(description="reference.json; null: a page without weights has no reference")
    ]
    recorded: NotRequired[FileName | None]
    training: NotRequired[FileName | None]
    activations: Annotated[list[ListedActivation], Field(description="Activations in the order of computation")]
    family: Family
    split: NotRequired[SplitServer | None]
    files: dict[str, ListedFile]
    shards: Annotated[list[Shard], Field(description="empty in a page without weights, where a visitor opens a file")]
