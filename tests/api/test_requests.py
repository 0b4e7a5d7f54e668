"""Tests how the fields of a request are read, without a server."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from glgpt.api.errors import ApiError, in_json
from glgpt.api.requests import ChatRequest, CompletionRequest, parsed
from glgpt.errors import quoted


def request(**fields: Any) -> ChatRequest:
    return parsed(ChatRequest, json.dumps({"messages": [], **fields}).encode())


def test_top_p_0_is_greedy() -> None:
    assert request(top_p=0, temperature=0.7).sampling(100, {}).temperature == 0
    assert request(top_p=0.5, temperature=0.7).sampling(100, {}).temperature == 0.7


def test_the_model_recommends_what_a_request_leaves_out() -> None:
    usual = {"temperature": 0.2, "top_p": 0.9, "top_k": 40}
    found = request(temperature=None, top_k=0).sampling(100, usual)
    assert (found.temperature, found.top_p, found.top_k) == (0.2, 0.9, None)
    found = request(temperature=1, top_p=0.5).sampling(100, usual)
    assert (found.temperature, found.top_p, found.top_k) == (1, 0.5, 40)
    assert request().sampling(100, {}).temperature == 1  # the default if the model recommends nothing


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"stop": 3}, "stop", "stop is 3; it must be a string or an array"),
        ({"stop": ["a", 1]}, "stop.1", "stop.1 is 1; it must be a string"),
        ({"stop": ["a"] * 17}, "stop", "it must be an array of at most 16 elements"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", 'logit_bias has the key "x"; keys must be an integer'),
        ({"logit_bias": {"1": 1e39}}, "logit_bias", "it must be a number up to 3e+38"),
        ({"logit_bias": {"1": -math.inf}}, "logit_bias.1", "logit_bias.1 is -Infinity; it must be a finite number"),
        ({"logit_bias": {"100": 1}}, "logit_bias", "the vocabulary has 100"),
        ({"temperature": float("nan")}, "temperature", "temperature is NaN; it must be a finite number"),
        ({"temperature": 1e31}, "temperature", "from 0 (greedy) to 1e+30"),
        ({"temperature": None, "n": 0}, "n", "n is 0; it must be at least 1"),
        ({"n": 10**400}, "n", "n is a number of about 400 digits; it must be at most 32"),
        ({"n": "many"}, "n", 'n is "many"; it must be an integer'),
        ({"stream": "x"}, "stream", 'stream is "x"; it must be true or false'),
        ({"tools": [None]}, "tools.0", "tools.0 is null; it must be an object"),
        ({"response_format": {}}, "response_format.type", "response_format.type is missing"),
        ({"response_format": {"type": "xml"}}, "response_format.type", 'is "xml"; it must be "text", "json_object" or'),
        ({"stop": "a" * 3, "messages": "hi"}, "messages", 'messages is "hi"; it must be an array'),
        ({"stop": True}, "stop", "stop is true; it must be"),
        ({"modalities": [[None, False]]}, "modalities.0", 'modalities.0 is [null, false]; it must be "text"'),
        ({"tools": [{"type": "function", "function": {"name": "é"}}]}, "tools.0.function.name",
         'is "é"; it must be a string that matches ^['),
        ({"logit_bias": {"1": "x"}}, "logit_bias.1", 'logit_bias.1 is "x"; it must be a number'),
        ({"stream_options": {"a": 1}}, "stream_options.a", "is not a field"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}},
         "response_format.json_schema.schema", "schema is 3; it must be an object or true or false"),
    ],
)  # fmt: skip
def test_the_field_at_fault_is_named_as_clients_know_it(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(ApiError) as caught:
        request(**fields).sampling(100, {})
    assert caught.value.param == param and message in caught.value.message


def test_a_field_that_is_null_is_not_set() -> None:
    """Regression: clients that send every field of OpenAI's API, unset ones as null, were refused."""
    nulls = dict.fromkeys(("functions", "function_call", "audio", "prediction", "web_search_options", "best_of", "n"))
    assert request(**nulls) == request(n=None)
    assert request(stream_options={"include_usage": None}).stream_options
    with pytest.raises(ApiError, match=r"^functions is not a field"):
        request(functions=[])
    with pytest.raises(ApiError, match=r"^messages is null"):
        request(messages=None)


def test_a_long_value_is_shortened_before_it_is_escaped() -> None:
    assert in_json("a" * 500 + "b").startswith('"aaa') and in_json("a" * 500 + "b").endswith('aab"')
    assert in_json([1, None, True]) == "[1, null, true]" and in_json("a" * 100) == quoted('"' + "a" * 100 + '"')


def test_a_body_is_an_object() -> None:
    with pytest.raises(ApiError, match=r"^the body must be a JSON object$"):
        parsed(ChatRequest, b"[]")
    with pytest.raises(ApiError, match=r'^the body has the key "\\+ud800"; keys must be Unicode text$'):
        parsed(ChatRequest, b'{"\\ud800": 1}')


@pytest.mark.parametrize("prompt", ["", [], [""], ["a", ""], [[1], []]])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ApiError, match="the prompt is empty"):
        _ = parsed(CompletionRequest, json.dumps({"prompt": prompt}).encode()).prompts


def test_a_prompt_may_begin_with_token_0() -> None:
    assert parsed(CompletionRequest, b'{"prompt": [0, 1]}').prompts == [[0, 1]]
