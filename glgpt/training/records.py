"""Defines the schemas of a run folder: `train.json`, a line of `metrics.jsonl`, the metadata of `state.safetensors`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from glgpt import models
from glgpt.errors import FileError, quoted
from glgpt.models.spec import MAX_SIZE
from glgpt.program.kernel import KERNELS
from glgpt.training.settings import MAX_COUNT, Settings

Model = TypeVar("Model", bound=BaseModel)
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Steps = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Share = Annotated[float, Field(ge=0, lt=1)]
Figure = float | None  # None: the value was not finite, or was not logged


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Source(_Strict):
    """The origin of a file's text, as recorded by `glgpt data fetch`."""

    source: str
    date: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=1)]


class Record(_Strict):
    """`train.json`: how a run was started. `files` is empty if the run was given a text instead of files."""

    glgpt: str = ""
    files: list[str]
    sources: list[Source] = []
    preset: str | None = None
    init: str | None = None
    vocab_size: Size
    data: str  # identifies the text and the tokenizer: `text.dataset.Data.key`
    tokenizer: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # hash of its files: `tokenizer_training.identity`
    settings: Settings


class Line(_Strict):
    """A line of `metrics.jsonl`: the results of a step, of a validation if one was due, and in f16 the loss scale."""

    step: Steps
    loss: Figure = None
    grad_norm: Figure = None
    lr: Figure = None
    tokens_per_s: Figure = None
    validation_loss: Figure = None
    validation_bits_per_byte: Figure = None
    loss_scale: Figure = None
    overflows: int = 0

    @model_validator(mode="after")
    def _validation_is_whole(self) -> Line:
        if (self.validation_loss is None) != (self.validation_bits_per_byte is None):
            raise ValueError("validation_loss and validation_bits_per_byte must both be present or both be absent")
        return self


class Made(_Strict):
    """The device, kernel and texture fetch that computed a state; only the same three reproduce it bit for bit."""

    on: str
    kernel: str
    fetch: Literal["texelFetch", "textureLod"]

    @field_validator("kernel")
    @classmethod
    def _known(cls, kernel: str) -> str:
        if kernel not in KERNELS:
            raise ValueError(f"unknown kernel; expected one of {', '.join(KERNELS)}")
        return kernel


class RecipeFields(BaseModel):
    """The fields of `program.Recipe`; if `batch` or `context` is None, the trainer takes the value from its steps."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False, extra="forbid")

    batch: Size | None
    context: Size | None
    accumulate: Size = 1
    betas: tuple[Share, Share] = (0.9, 0.95)
    eps: Annotated[float, Field(ge=0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    clip: Annotated[float, Field(ge=0)] = 1.0
    dropout: Share = 0.0
    recompute: bool = False
    precision: Literal["f32", "f16"] = "f32"


class Scale(_Strict):
    """The loss scale of the next step; see `training.loss_scale`."""

    value: Annotated[float, Field(gt=0)]
    steps: Steps


class Sum(_Strict):
    """The SHA-256 of a tensor's bytes (little-endian f32, row by row), and its shape."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    shape: list[Annotated[int, Field(ge=1, le=MAX_SIZE)]]


class About(_Strict):
    """The metadata of `state.safetensors`; browsers write neither `made` nor `tensors`.

    `shape` is (batch, context) of the recorded program if either of them is None in the recipe.
    """

    config: dict[str, Any]
    recipe: RecipeFields
    lr: Annotated[float, Field(ge=0)]
    seed: Annotated[int, Field(ge=0, lt=1 << 32)]
    step: Steps
    shape: tuple[Size, Size] | None = None
    loss_scale: Scale | None = None
    made: Made | None = None
    tensors: dict[str, Sum] | None = None

    @field_validator("config")
    @classmethod
    def _a_models(cls, config: dict[str, Any]) -> dict[str, Any]:
        try:
            models.from_fields(config)
        except TypeError as error:
            raise ValueError(str(error)) from None
        return config


def validated(model: type[Model], text: str | bytes, where: str) -> Model:
    """Parses JSON `text`. Raises FileError that begins with `where` and names the first invalid field."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = quoted(".".join(map(str, first["loc"])), 120)
        why = quoted(first["msg"].removeprefix("Value error, "), 200)
        raise FileError(f"{where}: {field + ': ' if field else ''}{why}") from None
