"""Checks the bodies of requests, and turns them into texts to generate."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from glgpt.api.errors import ApiError, in_json, invalid_request
from glgpt.api.tools import MAX_TOOLS, Tool, Tools, checked_calls
from glgpt.errors import GlgptError, quoted
from glgpt.inference.arguments.sampling_options import SamplingOptions
from glgpt.inference.constraints.constraint import Constraint, ConstraintError

MAX_CHOICES = 32  # maximum number of texts per request
MAX_STOPS = 16
MAX_TOP = 20  # maximum number of likeliest tokens to report with each token of an answer
COMPLETION_TOKENS = 16  # OpenAI's default of max_tokens for text completions
IGNORED = (
    "model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_options", "prompt_cache_retention", "reasoning_effort", "verbosity",
)  # fields that clients may send and that have no effect here  # fmt: skip
Count = Annotated[int, Field(ge=1)]
Stop = Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=MAX_STOPS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class StreamOptions(_Strict):
    """Holds the options of a streamed answer."""

    include_usage: bool | None = False
    include_obfuscation: bool | None = None


class JsonSchema(BaseModel):
    """Holds the schema of `response_format`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    name: str = ""
    description: str | None = None
    strict: bool | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")


class ResponseFormat(_Strict):
    """Holds the required form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(BaseModel):
    """Holds the constraint of an answer, with the field names of vLLM."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None


class GenerationRequest(_Strict):
    """The fields that chat and text completions share."""

    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: str | Stop | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    top_k: int | None = None
    min_p: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[int, Annotated[float, Field(allow_inf_nan=False)]] | None = None
    seed: int | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_ignored(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Drops ignored fields, and unknown fields that are null: some clients send every field of OpenAI's API."""
        known = {key: value for key, value in given.items() if value is not None or key in cls.model_fields}
        return {key: value for key, value in known.items() if key not in IGNORED}

    @property
    def stops(self) -> list[str]:
        """Returns the stop texts: an answer ends before the first of them."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def constrained(self) -> bool:
        """True if a field constrains the answer."""
        return any(True for _ in self._constraints())

    def constraint(self) -> Constraint | None:
        """Returns the constraint of the answer, or None. Raises ApiError for several constraints or an invalid one."""
        asked = list(self._constraints())
        if len(asked) > 1:
            names = " and ".join(field for field, _ in asked)
            raise ApiError(400, f"{names} each constrain the answer; give only one", asked[1][0])
        for field, made in asked:
            try:
                return made()
            except ConstraintError as error:
                raise self.unusable(error, field) from None
        return None

    def unusable(self, error: ConstraintError, field: str | None = None) -> ApiError:
        """Returns the error for a request with a constraint that cannot be used. `field` holds the constraint."""
        field = field or next((name for name, _ in self._constraints()), None)
        own = self.response_format.json_schema if field == "response_format" and self.response_format else None
        return ApiError(400, f"{quoted(own.name)}: {error}" if own and own.name else str(error), field)

    def _constraints(self) -> Iterator[tuple[str, Callable[[], Constraint]]]:
        """Yields each field that constrains the answer, and a function that makes the field's constraint."""
        own, more = self.response_format, self.structured_outputs or StructuredOutputs(json=None)
        if own and own.type == "json_schema":
            if own.json_schema is None or (schema := own.json_schema.schema_) is None:
                raise ApiError(400, "response_format lacks json_schema.schema", "response_format")
            yield "response_format", partial(Constraint.json_schema, schema)
        if own and own.type == "json_object":
            yield "response_format", Constraint.json_object
        if more.json_object:
            yield "structured_outputs", Constraint.json_object
        given: tuple[tuple[str, Callable[[Any], Constraint], Any], ...] = (
            ("guided_json", Constraint.json_schema, self.guided_json),
            ("guided_regex", Constraint.regex, self.guided_regex),
            ("guided_choice", Constraint.choice, self.guided_choice),
            ("structured_outputs", Constraint.json_schema, more.json_),
            ("structured_outputs", Constraint.regex, more.regex),
            ("structured_outputs", Constraint.choice, more.choice),
        )
        for field, kind, value in given:
            if value is not None:
                yield field, partial(kind, value)

    def sampling(self, vocab_size: int, defaults: Mapping[str, Any]) -> SamplingOptions:
        """Returns the sampling options; `defaults` apply to fields that are missing or null.

        Raises ApiError, naming the field, for values that cannot be used.
        """
        for name in ("frequency_penalty", "presence_penalty"):
            if getattr(self, name):
                raise ApiError(400, f"{name} is not supported; use repetition_penalty", name)
        chosen: dict[str, Any] = {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": self.logit_bias,
            "seed": None if self.seed is None else self.seed % 2**64,
            "constraint": self.constraint(),
        }
        chosen |= {name: value for name, value in defaults.items() if chosen[name] is None}
        if chosen["temperature"] is None:
            chosen["temperature"] = 1.0
        if chosen["top_k"] is not None and chosen["top_k"] <= 0:  # 0 and -1 mean all tokens, as in vLLM
            chosen["top_k"] = None
        for name, value in chosen.items():
            try:
                SamplingOptions(**{name: value}).check_vocabulary(vocab_size)
            except GlgptError as error:
                raise refused(error, name) from None
        return SamplingOptions(**chosen)


class ChatRequest(GenerationRequest):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None

    @property
    def limit(self) -> int | None:
        """Returns the maximum number of tokens of an answer; None for as many as the context holds."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def top(self) -> int | None:
        """Returns the number of likeliest tokens to send with each token; None to send no log probabilities."""
        if not self.logprobs:
            if self.top_logprobs:
                raise ApiError(400, "top_logprobs needs logprobs: true", "top_logprobs")
            return None
        return self.top_logprobs or 0

    def offered(self) -> Tools | None:
        """Returns the functions that the answer may call. Raises ApiError for a tool_choice that cannot be used."""
        found = Tools.asked(self.tools, self.tool_choice, self.parallel_tool_calls)
        if found and found.forced and self.constraint():
            raise ApiError(400, "tool_choice and another field each constrain the answer; give only one", "tool_choice")
        return found

    def plain_messages(self) -> list[dict[str, Any]]:
        """Returns the messages, with the text parts of each content joined. Raises ApiError for images and sounds."""
        return [_plain(i, message) for i, message in enumerate(self.messages)]


class CompletionRequest(GenerationRequest):
    """The body of /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    echo: Literal[False] | None = None
    suffix: Literal[""] | None = None
    best_of: int | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """Returns the prompts. Raises ApiError if the list or a prompt is empty."""
        given: Sequence[Any] = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if not given or any(each in ("", []) for each in given):
            raise ApiError(400, "the prompt is empty; give some text or token ids", "prompt")
        return [list(given)] if isinstance(given[0], int) else list(given)


R = TypeVar("R", bound=GenerationRequest)


def parsed(kind: type[R], body: bytes) -> R:
    """Returns the request in a body. Raises ApiError, naming the field at fault."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {quoted(error, 120)}") from None
    if not isinstance(given, dict):
        raise ApiError(400, "the body must be a JSON object")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise invalid_request(given, error) from None


def refused(error: GlgptError, param: str | None = None) -> ApiError:
    """Returns the error for a request that the model refuses."""
    return ApiError(400, str(error), param)


def _plain(index: int, message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, list):
        kinds = [part.get("type") if isinstance(part, Mapping) else None for part in content]
        if other := [kind for kind in kinds if kind != "text"]:
            why = f"messages[{index}] has a part of type {quoted(other[0])}; this model reads text only"
            raise ApiError(400, why, "messages")
        texts = [part.get("text", "") for part in content]
        if other := [text for text in texts if not isinstance(text, str)]:
            raise ApiError(400, f"messages[{index}] has the text {in_json(other[0])}; it must be a string", "messages")
        content = "".join(texts)
    found = {key: value for key, value in message.items() if value is not None}
    if not isinstance(calls := message.get("tool_calls") or [], list):
        raise ApiError(400, f"messages[{index}]: tool_calls is {in_json(calls)}; it must be an array", "messages")
    if calls:
        found["tool_calls"], content = checked_calls(index, message), content or ""
    return found | ({} if content is None else {"content": content})
