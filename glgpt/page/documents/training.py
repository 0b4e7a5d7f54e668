"""Defines training.json, which lists the models that a page can train (`sizes`), and the texts to train on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, with_config
from typing_extensions import NotRequired, TypedDict

from glgpt.models.views import Family, ListedActivation
from glgpt.page.documents.fields import OPEN, Count, Digest, FileName, Positive, Size, Text
from glgpt.training.settings import SCHEDULES


class BundledText(TypedDict):
    """A text that comes with the page."""

    name: Text
    title: Text
    about: str
    source: str
    file: Text
    bytes: Size


class ListedBook(TypedDict):
    """A book that the page can fetch."""

    title: Text
    author: Text
    url: Annotated[str, Field(pattern="^https?://")]


@with_config(OPEN)
class OfferConfig(TypedDict):
    """The sizes of a model to train; further fields are those of the model's family."""

    vocab_size: Size
    n_positions: Size
    n_embd: Size
    n_layer: Size
    n_head: Size


@with_config(OPEN)
class OfferShape(TypedDict):
    """The sizes of a model that have the same names in every family, such as `d_head`."""

    d_head: Size


@with_config(OPEN)
class OfferRecipe(TypedDict):
    """The settings that a training program depends on, as in `glgpt.training.program.Recipe`."""

    batch: Size
    context: Size
    accumulate: Literal[1]
    precision: NotRequired[Literal["f32", "f16"]]
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]


class OfferSettings(TypedDict):
    """The default settings of a run."""

    steps: Size
    lr: Positive
    min_lr: Annotated[float, Field(ge=0)]
    warmup: Count
    schedule: Annotated[str, Field(json_schema_extra={"enum": list(SCHEDULES)})]


class OfferedParameter(TypedDict):
    """A parameter's names and shape, and whether its texture holds the transpose."""

    name: Text  # in programs
    stored: Text  # in a checkpoint
    shape: Annotated[list[Size], Field(min_length=1, max_length=2)]
    transposed: bool


class OfferedProgram(TypedDict):
    """The files of the programs for one kernel (the block of a matrix product that one fragment computes)."""

    kernel: Text
    draw_buffers: Size  # number of outputs of a pass that the device must support
    file: FileName  # the training program
    generate: FileName  # generates text
    capture: FileName  # outputs every activation
    interventions: FileName  # generates text with changed activations


class Offer(TypedDict):
    """A model size that the page can train with one kind of tokenizer."""

    name: Text
    tokenizer: Annotated[str, Field(pattern="^(bytes|bpe:[0-9]+)$")]
    digest: Digest
    config: OfferConfig
    shape: OfferShape
    activations: list[ListedActivation]
    family: Family
    checkpoint: dict[str, Any]  # content of config.json
    recipe: OfferRecipe
    settings: OfferSettings
    count: Size  # number of learned values
    bytes: Size  # of the training program's textures
    flops: Size  # floating-point operations of a step
    parameters: Annotated[list[OfferedParameter], Field(min_length=1)]
    programs: Annotated[list[OfferedProgram], Field(min_length=1)]


class Training(TypedDict):
    """The models that a page can train (`sizes`), and the texts to train on."""

    schema: Literal[6]
    texts: Annotated[list[BundledText], Field(min_length=1)]
    books: list[ListedBook]
    look: Size  # number of tokens whose attention the page shows during training
    sizes: Annotated[list[Offer], Field(min_length=1)]
