"""Describes functions to a model, and constrains its answer to a function call.

A chat template that mentions `tools` describes the functions itself; for any other template, a system message does
(`SYSTEM`). If a template does not mention `tool_calls`, calls and results become text in the form that `SYSTEM` shows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from glgpt.api.calls import ARGUMENTS, CLOSE, OPEN, PARAMETERS, CallParser
from glgpt.api.errors import ApiError, in_json
from glgpt.errors import quoted
from glgpt.inference.constraints.constraint import Constraint, ConstraintError

MAX_TOOLS = 128
DIAGNOSIS_S = 10.0  # seconds after which `Tools.unusable` checks no further function
COMBINED = {"$ref", "anyOf", "oneOf", "allOf"}  # keys with which a schema combines other schemas
# Keys whose value is an object that holds a schema under each name
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
DATA = ("enum", "const", "default", "examples")  # keys whose values are data, not schemas
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
SYSTEM = """You can call functions. Each line below describes one as JSON:
{tools}
To call one, answer with its name and arguments and nothing else:
<tool_call>
{{"name": "…", "arguments": {{…}}}}
</tool_call>
The result follows between <tool_response> and </tool_response>. Answer without a call if none is needed."""


class Function(BaseModel):
    """Describes a function."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """Holds a function that the model may call."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["function"]
    function: Function

    def document(self) -> dict[str, Any]:
        """Returns the function in the form that templates render."""
        own = self.function
        about = {"name": own.name, "description": own.description or "", "parameters": own.parameters or NO_PARAMETERS}
        return {"type": "function", "function": about}


@dataclass(frozen=True)
class Tools:
    """The functions of a request; with `forced`, the answer must call one. `most` is the maximum number of calls.

    `first` is the index of `functions[0]` in the request's list.
    """

    functions: tuple[Tool, ...]
    forced: bool = False
    most: int | None = None
    first: int = 0

    @classmethod
    def asked(cls, tools: Sequence[Tool] | None, choice: Any, parallel: bool | None) -> Tools | None:
        """Returns the tools of a request; None if the answer may not call functions. Raises ApiError if invalid."""
        if not tools:
            if choice not in (None, "none", "auto"):
                raise ApiError(400, "tool_choice needs tools", "tool_choice")
            return None
        names = [tool.function.name for tool in tools]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ApiError(400, f"two functions are named {quoted(twice[0])}", "tools")
        if choice == "none":
            return None
        most = 1 if parallel is False else None
        if choice in (None, "auto"):
            return cls(tuple(tools), most=most)
        if choice == "required":
            return cls(tuple(tools), True, 1)
        own = choice.get("function") if isinstance(choice, Mapping) and choice.get("type") == "function" else None
        if not isinstance(own, Mapping):
            why = f'tool_choice is {in_json(choice)}; it must be "none", "auto", "required" or a function'
            raise ApiError(400, why, "tool_choice")
        if own.get("name") not in names:
            raise ApiError(400, f"tool_choice names {quoted(own.get('name'))}, which is not in tools", "tool_choice")
        first = names.index(own["name"])
        return cls((tools[first],), True, 1, first)

    def documents(self) -> list[dict[str, Any]]:
        """Returns the functions in the form that templates render."""
        return [tool.document() for tool in self.functions]

    def parser(self) -> CallParser:
        """Returns a parser of an answer."""
        return CallParser([tool.function.name for tool in self.functions], self.most)

    def constraint(self, key: str) -> Constraint:
        """Returns the constraint of a forced call: the arguments, under the key `key`, match the function's schema.

        Raises ConstraintError for a schema that is not JSON, or is nested too deeply.
        """
        calls, own = [], {}
        for i, tool in enumerate(self.functions):
            schema = tool.function.parameters or dict(NO_PARAMETERS)
            # In a schema with combined schemas, `additionalProperties` would forbid the properties that these define.
            if not COMBINED & schema.keys():
                schema = {"additionalProperties": False} | schema
            try:
                own[str(i)] = _moved(schema, f"#/$defs/{i}")
            except RecursionError:
                raise ConstraintError("the JSON schema is nested too deeply; nest it less") from None
            properties = {"name": {"const": tool.function.name}, key: {"$ref": f"#/$defs/{i}"}}
            closed = {"required": ["name", key], "additionalProperties": False}
            calls.append({"type": "object", "properties": properties, **closed})
        return Constraint.json_schema({"anyOf": calls, "$defs": own})

    def unusable(self, error: ConstraintError, check: Callable[[Constraint], None]) -> ApiError:
        """Returns the answer to a request whose forced call cannot be constrained.

        The answer names the function at fault, if that function is found within `DIAGNOSIS_S` seconds. `check` raises
        ConstraintError for a constraint that cannot be used.
        """
        end = time.monotonic() + DIAGNOSIS_S
        for i, tool in enumerate(self.functions, self.first):
            if time.monotonic() > end:
                break
            try:
                check(Constraint.json_schema(tool.function.parameters or dict(NO_PARAMETERS)))
            except ConstraintError as own:
                why = f"the parameters of the function {quoted(tool.function.name)}: {own}"
                return ApiError(400, why, f"tools.{i}.function.parameters")
        return ApiError(400, str(error), "tools")


def _moved(schema: Any, root: str) -> Any:
    """Returns a schema with its references (`$ref`) adapted to a document that holds the schema at the place `root`."""
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in NAMED and isinstance(value, dict):
            found[key] = {name: _moved(each, root) for name, each in value.items()}
        elif key == "$ref" and isinstance(value, str) and value[:1] == "#":
            found[key] = root + value[1:]
        elif key not in ("$schema", "$id"):
            found[key] = value if key in DATA else _moved(value, root)
    return found


def checked_calls(index: int, message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the calls of a message with arguments as objects, for templates. Raises ApiError for invalid calls."""
    found = []
    for call in message["tool_calls"]:
        own = call.get("function") if isinstance(call, Mapping) else None
        arguments = own.get("arguments") if isinstance(own, Mapping) else None
        try:
            arguments = json.loads(arguments or "{}") if isinstance(arguments, str | None) else arguments
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(own, Mapping) or not isinstance(own.get("name"), str) or not isinstance(arguments, dict):
            why = f"messages[{index}]: a call in tool_calls needs a function with name and arguments, a JSON object"
            raise ApiError(400, why, "messages")
        found.append({**call, "type": "function", "function": {**own, "arguments": arguments}})
    return found


@dataclass(frozen=True)
class CallForm:
    """Holds the form of a model's calls: the key of the arguments, and the text that begins a forced call."""

    key: str
    start: str

    @classmethod
    def of(cls, mentions: Callable[[str], bool]) -> CallForm:
        """Returns the form for a template; `mentions` returns True for texts that the template contains."""
        tagged = mentions(OPEN)
        key = PARAMETERS if mentions(f'"{PARAMETERS}": ') and not tagged else ARGUMENTS
        return cls(key, f"{OPEN}\n" if tagged or not mentions("tools") else "")


def for_template(
    messages: Sequence[dict[str, Any]], tools: Tools | None, mentions: Callable[[str], bool]
) -> Sequence[dict[str, Any]]:
    """Returns messages that a template can render: features that the template does not mention become text."""
    if not mentions("tool_calls"):
        messages = without_tools(messages)
    return described(messages, tools) if tools and not mentions("tools") else messages


def without_tools(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages whose calls and results are text, for a template that does not mention `tool_calls`."""
    found: list[dict[str, Any]] = []
    results = False  # True if the previous message is the result of a call
    for message in messages:
        text = str(message.get("content") or "")
        if message.get("role") == "tool":
            text = f"<tool_response>\n{text}\n</tool_response>"
            if results:  # joins results, because a template may require roles to alternate
                text = f"{found.pop()['content']}\n{text}"
            found.append({"role": "user", "content": text})
        elif calls := message.get("tool_calls"):
            written = [json.dumps(_written(call), ensure_ascii=False) for call in calls]
            parts = [text, *(f"{OPEN}\n{call}\n{CLOSE}" for call in written)]
            found.append({"role": "assistant", "content": "\n".join(part for part in parts if part)})
        else:
            found.append(message)
        results = message.get("role") == "tool"
    return found


def _written(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}


def described(messages: Sequence[dict[str, Any]], tools: Tools) -> list[dict[str, Any]]:
    """Returns messages whose system message describes the tools, for a template that does not describe tools."""
    lines = "\n".join(json.dumps(each["function"], ensure_ascii=False) for each in tools.documents())
    text, rest = SYSTEM.format(tools=lines), list(messages)
    if rest and rest[0].get("role") in ("system", "developer"):
        text = f"{rest.pop(0).get('content') or ''}\n\n{text}".lstrip()
    return [{"role": "system", "content": text}, *rest]
