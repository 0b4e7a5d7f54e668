"""Writes answers as JSON in the shape of OpenAI's API: whole, and as pieces of a stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glgpt.api.calls import CallParser, CallPart, Part
from glgpt.api.choices import Choice, Event, TokenChance
from glgpt.api.tools import Tools
from glgpt.text.tokenizer import Tokenizer


@dataclass
class Answer:
    """Holds the fields that all pieces of an answer share, and writes the pieces."""

    chat: bool
    model: str
    tokenizer: Tokenizer
    fingerprint: str
    logprobs: bool = False
    tools: Tools | None = None
    id: str = ""
    created: int = field(default_factory=lambda: int(time.time()))
    _offsets: dict[int, int] = field(default_factory=dict)  # by index of a text: number of characters so far
    _parsers: dict[int, CallParser] = field(default_factory=dict)  # by index of a text, if it may call functions
    _chances_left: dict[int, list[TokenChance]] = field(default_factory=dict)  # by index of a text: not yet sent

    def __post_init__(self) -> None:
        """Sets a random id."""
        self.id = ("chatcmpl-" if self.chat else "cmpl-") + secrets.token_hex(12)

    def whole(self, choices: Sequence[Choice], events: Mapping[int, Sequence[Event]], usage: Any) -> dict[str, Any]:
        """Returns the answer to a request without streaming."""
        found = []
        for choice in choices:
            own = events[choice.index]
            chances = [chance for event in own for chance in event.chances]
            text, reason = "".join(event.text for event in own), own[-1].reason
            content: dict[str, Any] = {"text": text}
            if self.chat:
                content = {"message": {"role": "assistant", "content": text, "refusal": None}}
            if self.tools:
                parser = self.tools.parser()
                message = _message([*parser.push(text), *parser.flush()])
                content, reason = {"message": message}, _reason(reason, parser)
            found.append(
                {"index": choice.index, **content, "logprobs": self._chances(choice.index, chances)}
                | {"finish_reason": reason}
            )
        return self._object("chat.completion" if self.chat else "text_completion", found) | {"usage": usage}

    def begin(self, index: int) -> dict[str, Any]:
        """Returns the first piece of a chat text: the role, without content."""
        return self._piece([{"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])

    def pieces(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yields the pieces of a stream for an event. Text that may turn out to be a function call is held back."""
        if not self.tools:
            content: dict[str, Any] = {"text": event.text}
            if self.chat:
                content = {"delta": {} if event.reason else {"content": event.text}}
            yield self._choice(event.index, content, event.chances, event.reason)
            return
        parser = self._parsers.setdefault(event.index, self.tools.parser())
        chances = self._chances_left.setdefault(event.index, [])
        chances += event.chances
        for part in parser.flush() if event.reason else parser.push(event.text):
            delta = {"content": part} if isinstance(part, str) else {"tool_calls": [_call(part, part.index)]}
            yield self._choice(event.index, {"delta": delta}, chances, None)
            chances.clear()
        if event.reason:
            yield self._choice(event.index, {"delta": {}}, chances, _reason(event.reason, parser))

    def _choice(
        self, index: int, content: dict[str, Any], chances: Sequence[TokenChance], reason: str | None
    ) -> dict[str, Any]:
        found = self._chances(index, chances) if chances else None
        return self._piece([{"index": index, **content, "logprobs": found, "finish_reason": reason}])

    def end(self, usage: Any) -> dict[str, Any]:
        """Returns the usage, as the last piece of a stream."""
        return self._piece([]) | {"usage": usage}

    def _piece(self, choices: list[Any]) -> dict[str, Any]:
        return self._object("chat.completion.chunk" if self.chat else "text_completion", choices)

    def _object(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        about = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return about | {"system_fingerprint": self.fingerprint, "choices": choices}

    def _chances(self, index: int, chances: Sequence[TokenChance]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        if self.chat:
            content = [
                self._token(c.token, c.logprob) | {"top_logprobs": [self._token(*pair) for pair in c.top]}
                for c in chances
            ]
            return {"content": content, "refusal": None}
        offsets, texts = [], [self._text(c.token) for c in chances]
        for text in texts:
            offsets.append(self._offsets.get(index, 0))
            self._offsets[index] = offsets[-1] + len(text)
        return {
            "tokens": texts,
            "token_logprobs": [c.logprob for c in chances],
            "top_logprobs": [{self._text(i): p for i, p in c.top} for c in chances],
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return self.tokenizer.decode([token])

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        data = self.tokenizer.token_bytes(token)
        return {"token": self._text(token), "logprob": logprob, "bytes": list(data)}


def _call(part: CallPart, index: int | None = None) -> dict[str, Any]:
    """Returns a function call in the form of OpenAI's API; with `index`, returns a part of a streamed call."""
    found: dict[str, Any] = {} if index is None else {"index": index}
    if part.name is None:
        return found | {"function": {"arguments": part.arguments}}
    about = {"id": f"call_{secrets.token_hex(12)}", "type": "function"}
    return found | about | {"function": {"name": part.name, "arguments": part.arguments}}


def _message(parts: Sequence[Part]) -> dict[str, Any]:
    """Returns the message of an answer that may contain function calls."""
    text = "".join(part for part in parts if isinstance(part, str))
    calls: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, CallPart):
            if part.name is not None:
                calls.append(_call(part))
            else:
                calls[part.index]["function"]["arguments"] += part.arguments
    content: str | None = text if text or not calls else None
    return {"role": "assistant", "content": content, "refusal": None} | ({"tool_calls": calls} if calls else {})


def _reason(reason: str | None, parser: CallParser) -> str | None:
    return "tool_calls" if parser.count and reason == "stop" else reason


def usage(choices: Sequence[Choice], prompts: int) -> dict[str, Any]:
    """Returns the field `usage` of an answer: the numbers of tokens of the prompts and of the generated texts.

    `prompts` is the number of prompts; each prompt has the same number of `choices`.
    """
    each = len(choices) // prompts
    cached = sum(choice.row.run.cached_tokens for choice in choices[::each])
    read = cached + sum(choice.row.run.prefill_tokens for choice in choices[::each])
    made = sum(choice.tokens for choice in choices)
    return {
        "prompt_tokens": read,
        "completion_tokens": made,
        "total_tokens": read + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
