"""Tests what becomes of the fields of a request, without a server."""

from __future__ import annotations

import json
from typing import Any

from glgpt.api.requests import ChatRequest, parsed


def request(**fields: Any) -> ChatRequest:
    return parsed(ChatRequest, json.dumps({"messages": [], **fields}).encode())


def test_top_p_0_is_greedy() -> None:
    assert request(top_p=0, temperature=0.7).sampling().temperature == 0
    assert request(top_p=0.5, temperature=0.7).sampling().temperature == 0.7
