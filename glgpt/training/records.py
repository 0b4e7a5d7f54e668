"""What a run folder's files must hold: `train.json`, a line of `metrics.jsonl`, the metadata of `state.safetensors`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from glgpt import models
from glgpt.errors import FileError, quoted
from glgpt.models.spec import MOST_SIZE
from glgpt.program.kernel import KERNELS
from glgpt.training.settings import MOST_NUMBER, Settings

Model = TypeVar("Model", bound=BaseModel)
Size = Annotated[int, Field(ge=1, le=MOST_SIZE)]
Steps = Annotated[int, Field(ge=0, le=MOST_NUMBER)]
Share = Annotated[float, Field(ge=0, lt=1)]
Figure = float | None  # None: it was not finite


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Source(_Strict):
    """Where a file's text is from: what `glgpt data fetch` noted when it fetched it."""

    source: str
    date: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=1)]


class Record(_Strict):
    """`train.json`: what a run was started with; `files` is empty where it was given a text."""

    glgpt: str = ""
    files: list[str]
    sources: list[Source] = []
    preset: str | None = None
    init: str | None = None
    vocab_size: Size
    data: str  # tells the text and the tokenizer: `Data.key`
    tokenizer: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  # `identity` of its files; None: unknown
    settings: Settings


class Line(_Strict):
    """A line of `metrics.jsonl`: a step's figures; those of the validation where one was due; in f16 its loss scale."""

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
            raise ValueError("validation_loss and validation_bits_per_byte stand together or not at all")
        return self


class Made(_Strict):
    """On which device, and how, a state was computed: only the same makes the same bits."""

    on: str
    kernel: str
    fetch: Literal["texelFetch", "textureLod"]

    @field_validator("kernel")
    @classmethod
    def _known(cls, kernel: str) -> str:
        if kernel not in KERNELS:
            raise ValueError(f"there is no such kernel; there are {', '.join(KERNELS)}")
        return kernel


class RecipeFields(BaseModel):
    """`Recipe`, with a batch or context of None where the steps decide."""

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
    """The loss scale of the next step, see `training.loss_scale`."""

    value: Annotated[float, Field(gt=0)]
    steps: Steps


class Sum(_Strict):
    """What a tensor's bytes must be: little-endian f32, rows one after another."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    shape: list[Annotated[int, Field(ge=1, le=MOST_SIZE)]]


class About(_Strict):
    """The metadata of a state; a browser's has no `made`, and older ones no `tensors`.

    `shape` is the batch and context that was recorded for where the recipe leaves one open.
    """

    config: dict[str, Any]
    recipe: RecipeFields
    lr: Annotated[float, Field(gt=0)]
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
    """The model in JSON `text`. Raises FileError that begins with `where` and names the first wrong field."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = quoted(".".join(map(str, first["loc"])), 120)
        why = quoted(first["msg"].removeprefix("Value error, "), 200)
        raise FileError(f"{where}: {field + ': ' if field else ''}{why}") from None
