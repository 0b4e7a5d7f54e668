"""Tests that function calls are found in every form that models write, and in text that arrives in pieces."""

from __future__ import annotations

import json

import pytest

from glgpt.api.calls import CallParser, CallPart

WEATHER = '{"name": "weather", "arguments": {"city": "Pa}r\\"is", "days": [1, {"a": 2}]}}'
ARGUMENTS = {"city": 'Pa}r"is', "days": [1, {"a": 2}]}
HEADED = f"<tool_call>\n{WEATHER}\n</tool_call>"
TIME = '{"name": "time", "parameters": {}}'
FORMS: dict[str, tuple[str, str, list[str]]] = {
    "one": (HEADED, "", ["weather"]),
    "after text": (f"Let me look.\n\n{HEADED}\n", "Let me look.", ["weather"]),
    "two": (f"{HEADED}\n<tool_call>{TIME}</tool_call>", "", ["weather", "time"]),
    "plain": (f"  {WEATHER}", "", ["weather"]),
    "tagged": (f"<|python_tag|>{TIME}; {WEATHER}", "", ["time", "weather"]),
    "another order": ('{"arguments": {"a": 1}, "name": "time"}', "", ["time"]),
    "without an end": (f"<tool_call>{WEATHER}", "", ["weather"]),
    "another function": ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', []),
    "marked, another function": (
        '<tool_call>{"name": "x", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "x", "arguments": {}}</tool_call>',
        [],
    ),
    "no call": ("a < b <tool", "a < b <tool", []),
    "other JSON": ('{"a": [1, 2]} and more', '{"a": [1, 2]} and more', []),
    "later JSON": (f"See {TIME}", f"See {TIME}", []),
    "broken": ('<tool_call>{"name": ', '<tool_call>{"name": ', []),
    "text": ("  Hello.\n\nThere. ", "  Hello.\n\nThere. ", []),
}


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, size: int) -> None:
    text, content, names = FORMS[form]
    parser = CallParser(("weather", "time"))
    parts = [part for i in range(0, len(text), size) for part in parser.push(text[i : i + size])] + parser.flush()
    assert "".join(part for part in parts if isinstance(part, str)) == content
    calls = [part for part in parts if isinstance(part, CallPart)]
    assert [call.name for call in calls if call.name] == names
    assert [call.index for call in calls if call.name] == list(range(len(names)))
    for i, name in enumerate(names):
        arguments = json.loads("".join(call.arguments for call in calls if call.index == i))
        assert isinstance(arguments, dict) and (arguments == ARGUMENTS or name != "weather")


def test_only_so_many_calls() -> None:
    parser = CallParser(("weather", "time"), most=1)
    parts = [part for char in f"{HEADED} and {HEADED} more" for part in parser.push(char)] + parser.flush()
    assert {part.index if isinstance(part, CallPart) else part for part in parts} == {0}
