"""Tests the constraint of a forced call, and the messages that describe functions."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from glgpt.api.tools import Tool, Tools, described
from glgpt.inference.constraints.constraint import Constraint, ConstraintError

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tools(parameters: dict[str, Any]) -> Tools:
    function = {"name": "weather", "parameters": parameters}
    return Tools((Tool.model_validate({"type": "function", "function": function}),), True, 1)


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/City", "$defs": {"City": CITY}},
        {"anyOf": [CITY, {"type": "object", "properties": {"place": {"type": "string"}}}]},
        {"type": "object", "properties": {"$id": {"type": "string"}}, "required": ["$id"]},
        {"type": "object", "properties": {"kind": {"enum": [{"$ref": "#/not a reference"}]}}},
    ],
    ids=["reference", "alternatives", "a property named $id", "a value with $ref"],
)
def test_the_schema_of_a_forced_call_means_what_it_did(parameters: dict[str, Any]) -> None:
    """Fails if a call accepts arguments that the function's schema refuses.

    Also fails if a call refuses arguments that the schema accepts and whose properties the schema names.
    """
    call = json.loads(tools(parameters).constraint("arguments").source)
    for arguments in ({"city": "Paris"}, {"$id": "a"}, {"kind": {"$ref": "#/not a reference"}}, {"city": 3}, {}):
        alone = jsonschema.Draft202012Validator(parameters).is_valid(arguments)
        within = jsonschema.Draft202012Validator(call).is_valid({"name": "weather", "arguments": arguments})
        assert within <= alone, arguments  # a call may forbid properties that `parameters` does not name
        assert within or not alone or arguments.keys() - parameters.get("properties", {}).keys(), arguments


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema = dict(CITY)
    for _ in range(1000):
        schema = {"properties": {"a": schema}}
    with pytest.raises(ConstraintError, match="nested too deeply; nest it less"):
        tools(schema).constraint("arguments")


def test_a_diagnosis_takes_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if the search for the function whose schema is refused compiles the schemas of too many functions."""
    checked: list[Constraint] = []
    asked = Tools(tools(CITY).functions * 9, True, 1)
    monkeypatch.setattr("time.monotonic", lambda: 4.0 * len(checked))
    assert asked.unusable(ConstraintError("no"), checked.append).param == "tools"
    assert len(checked) == 3


def test_a_system_message_without_content_adds_none() -> None:
    (system,) = described([{"role": "system", "content": None}], tools(CITY))
    assert system["content"].startswith("You can call functions.")
