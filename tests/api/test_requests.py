"""Tests what becomes of the fields of a request, without a server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from glgpt.api.errors import ApiError
from glgpt.api.requests import ChatRequest, parsed


def request(**fields: Any) -> ChatRequest:
    return parsed(ChatRequest, json.dumps({"messages": [], **fields}).encode())


def test_top_p_0_is_greedy() -> None:
    assert request(top_p=0, temperature=0.7).sampling(100).temperature == 0
    assert request(top_p=0.5, temperature=0.7).sampling(100).temperature == 0.7


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"stop": 3}, "stop", "stop is 3; it must be a text or a list"),
        ({"stop": ["a", 1]}, "stop.1", "stop.1 is 1; it must be a text"),
        ({"stop": ["a"] * 17}, "stop", "it must be a list of at most 16"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "logit_bias.x is 'x'; it must be a whole number"),
        ({"logit_bias": {"1": 1e39}}, "logit_bias", "it must be a number up to 3e+38"),
        ({"logit_bias": {"100": 1}}, "logit_bias", "the vocabulary has 100"),
        ({"temperature": float("nan")}, "temperature", "temperature is nan; it must be a finite number"),
        ({"temperature": 1e31}, "temperature", "from 0 (greedy) to 1e+30"),
        ({"temperature": None, "n": 0}, "n", "n is 0; it must be at least 1"),
        ({"n": 10**400}, "n", "n is a number of about 400 digits; it must be at most 32"),
        ({"n": "many"}, "n", "n is 'many'; it must be a whole number"),
        ({"stream": "x"}, "stream", "stream is 'x'; it must be true or false"),
        ({"tools": [None]}, "tools.0", "tools.0 is None; it must be an object"),
        ({"response_format": {}}, "response_format.type", "response_format.type is missing"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "is 'xml'; it must be 'text', 'json_object' or"),
        ({"stop": "a" * 3, "messages": "hi"}, "messages", "messages is 'hi'; it must be a list"),
        ({"stream_options": {"a": 1}}, "stream_options.a", "is not a field"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
         "response_format.json_schema.schema", "schema is 3; it must be an object or true or false"),
    ],
)  # fmt: skip
def test_the_field_at_fault_is_named_as_clients_know_it(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        request(**fields).sampling(100)
    assert caught.value.param == param and message in caught.value.message


def test_a_body_is_an_object() -> None:
    with pytest.raises(ApiError, match=r"^the body must be a JSON object$"):
        parsed(ChatRequest, b"[]")
