"""Defines manifest.json, which lists the files of an exported page and describes its model."""

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

MAX_VALUES = 1 << 24  # of a vocabulary or a context
MAX_BLOCKS = 1 << 10
MAX_WIDTH = 1 << 18
MAX_HEAD_WIDTH = 1 << 16


@with_config(OPEN)
class Config(TypedDict):
    """The sizes of the model; the other fields are those of its family."""

    vocab_size: Annotated[int, Field(ge=1, le=MAX_VALUES)]
    n_positions: Annotated[int, Field(ge=1, le=MAX_VALUES)]
    n_layer: Annotated[int, Field(ge=1, le=MAX_BLOCKS)]
    n_head: Annotated[int, Field(ge=1, le=MAX_BLOCKS)]
    n_embd: Annotated[int, Field(ge=1, le=MAX_WIDTH)]
    d_head: Annotated[int, Field(ge=1, le=MAX_HEAD_WIDTH)]


class RecordingFiles(TypedDict):
    """The files of the programs recorded for one kernel and one layout of one-row products, and of their probes."""

    draw_buffers: Annotated[int, Field(ge=1, le=32)]
    kernel: str
    rows: Literal["strided", "contiguous"]
    blends: NotRequired[Annotated[bool, Field(description="only for devices that blend floats (EXT_float_blend)")]]
    pairs: NotRequired[
        Annotated[bool, Field(description="only for devices whose derivatives differ from column to column of a quad")]
    ]
    generate: FileName
    capture: FileName
    product: FileName
    row: FileName
    interventions: NotRequired[FileName]
    several: NotRequired[FileName]
    masked: NotRequired[FileName]


class Tuning(TypedDict):
    """Constants shared by the desktop and the page."""

    one_token: Annotated[
        float, Field(gt=0, description="cost of decoding one token of a prompt, in units of a chunk's token")
    ]
    one_captured: Annotated[float, Field(gt=0, description="one_token for an entry that captures all activations")]
    per_chunk: Annotated[float, Field(ge=0, description="cost of a chunk in addition to its tokens")]
    panels_pay: Annotated[
        float,
        Field(
            gt=0, description="panels are used if a one-row product takes less than this share of its time without them"
        ),
    ]
    steady: Annotated[
        float, Field(ge=1, description="maximum ratio of a probe's second best run to its best, if times are steady")
    ]
    draw_flops: Annotated[float, Field(gt=0, description="maximum operations of one draw")]
    ahead: Annotated[int, Field(ge=1, le=1024, description="maximum number of tokens that the page issues at once")]
    texts: NotRequired[
        Annotated[
            int, Field(ge=1, le=256, description="number of texts that `several` of a recording continues at once")
        ]
    ]


class ExamplePrompt(TypedDict):
    """A text to start from, and the caption of its button."""

    title: Text
    text: Text


class TemplateSource(TypedDict):
    """The chat template of an instruct model."""

    source: Annotated[str, Field(min_length=1, description="The Jinja template")]
    tools: NotRequired[Annotated[str, Field(min_length=1, description="That for messages with tools, if it differs")]]
    named: Annotated[
        dict[str, str], Field(description="Special tokens by role, such as bos_token, which the template reads")
    ]
    special: Annotated[
        dict[str, Count], Field(description="The id of each special token, which only the template may write")
    ]


class ShownHead(TypedDict):
    """The head that the tour shows."""

    layer: Count
    head: Count
    text: str
    question: str
    answer: str


class PageSampling(TypedDict):
    """The sampling settings of a page until a visitor changes them; missing filters are off."""

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
                description="The chat format of an instruct model: ids of special tokens, texts, and null for the "
                "message"
            ),
        ]
    ]
    chat_template: NotRequired[TemplateSource | None]
    sampling: NotRequired[PageSampling]
    head: NotRequired[ShownHead | None]


class SplitServer(TypedDict):
    """The server that can run a part of the model, and which part."""

    server: Annotated[str, Field(pattern="^wss?://")]
    wire: Format
    digest: str
    rest: Annotated[
        str | None,
        Field(
            description="The part that the server runs; null: the page holds all blocks and sets the server's part at "
            "run time"
        ),
    ]
    head: Annotated[
        Literal["server", "page"], Field(description="The side that computes the logits if the split point is fixed")
    ]
    stream: Annotated[
        list[str],
        Field(
            min_length=3,
            description="Names of the residual stream, after the embedding and after each block of both sides",
        ),
    ]
    activations: list[ListedActivation]


Piece = Annotated[list[Any], Items(tuple[str, Count, Count, Size])]


class Shard(TypedDict):
    """A file of weights.

    A piece is (texture, layer, first row, rows). Pieces follow each other, in the layout of a texture without panels.
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
        Annotated[str, Field(description="the same as in index.html, by which a page notices files of another export")]
    ]
    model: str
    dtype: Annotated[Dtype, Field(description="the format of most weights")]
    stored: NotRequired[
        Annotated[
            list[str] | None,
            Field(
                description="types of the model's GGUF file, if the weights are as stored there; the one of most "
                "weights first"
            ),
        ]
    ]
    parameters: NotRequired[Size]
    source: NotRequired[Annotated[str | None, Field(description="address of the page's source, http or https")]]
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
                description="Attention patterns that interventions can set, in the order of their numbers "
                "(ops.set_pattern)"
            ),
        ]
    ]
    tuning: Tuning
    tokenizer: FileName | None
    eos: NotRequired[Annotated[list[Count], Field(max_length=64, description="ids that end a text")]]
    reference: Annotated[FileName | None, Field(description="null: a page without weights has none")]
    recorded: NotRequired[FileName | None]
    training: NotRequired[FileName | None]
    activations: Annotated[list[ListedActivation], Field(description="Activations in the order of computation")]
    family: Family
    split: NotRequired[SplitServer | None]
    files: dict[str, ListedFile]
    shards: Annotated[list[Shard], Field(description="empty where a visitor opens the weights")]
