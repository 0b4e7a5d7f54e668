"""Finds calls of functions in the text of a model while the text arrives."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ARGUMENTS, PARAMETERS = "arguments", "parameters"  # keys of a call's arguments; Llama 3 uses the second
_TAG = "<|python_tag|>"  # a tag that Llama 3 may write before a call
_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:' + ARGUMENTS + "|" + PARAMETERS + r')"\s*:\s*(?=\{)'
)
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class CallPart:
    """A part of call number `index`; `arguments` is a piece of the arguments' JSON. Only the first part has `name`."""

    index: int
    arguments: str = ""
    name: str | None = None


Part = str | CallPart


@dataclass
class CallParser:
    """Separates a model's text into content and calls of the functions `names`.

    A call is `{"name": …, "arguments": {…}}` between <tool_call> and </tool_call>, as Qwen, Hermes and SmolLM2 write
    it. A call that begins the text or follows another call may lack the tags, and "parameters" may replace "arguments",
    as Llama 3 writes it. Calls of other functions count as content. After `most` calls, the rest of the text is
    dropped.
    """

    names: Collection[str]
    most: int | None = None
    count: int = 0
    _held: str = ""
    _state: str = "text"  # or "call", "arguments", "after"
    _opened: str = ""  # the tag before the call: OPEN, or "" if there is none
    _fresh: bool = True  # True at the beginning and after a call, where a call may begin without OPEN
    _depth: int = 0  # number of open braces and brackets in the arguments
    _quoted: bool = False  # True within a string of the arguments
    _escaped: bool = False
    _brace: bool = False  # True if the closing brace of the call is still to come
    _parts: list[Part] = field(default_factory=list)

    def push(self, piece: str) -> list[Part]:
        """Adds a piece of the text and returns the new parts."""
        self._held += piece
        while self._held and (self.most is None or self.count < self.most or self._state == "arguments"):
            states = {"text": self._text, "call": self._call, "arguments": self._arguments, "after": self._after}
            if not states[self._state]():
                break
        found, self._parts = self._parts, []
        return found

    def flush(self) -> list[Part]:
        """Returns the remaining parts at the end of the text. Text not yet recognized as a call becomes content."""
        done = self.most is not None and self.count >= self.most
        if self._state in ("text", "call") and not done:
            text = self._opened * (self._state == "call") + self._held
            self._content(text if not self.count else text.rstrip())
        self._held = ""
        found, self._parts = self._parts, []
        return found

    def _content(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._fresh = self._fresh and not text.strip()

    # -- states: each returns True if the parser can continue at once, and False if it needs more text ----------

    def _text(self) -> bool:
        if self._fresh:
            begun = self._held.lstrip(" \t\n\r;" if self.count else None)
            if _TAG.startswith(begun[: len(_TAG)]) and len(begun) < len(_TAG):
                return False
            begun = begun.removeprefix(_TAG).lstrip()
            if not begun:
                return False
            if begun.startswith("{"):
                self._held, self._opened, self._state = begun, "", "call"
                return True
        before, found, after = self._held.partition(OPEN)
        if found:
            self._content(before.rstrip())
            self._held, self._opened, self._state = after, OPEN, "call"
            return True
        end = max((n for n in range(len(OPEN)) if self._held.endswith(OPEN[:n])), default=0)
        keep = len(self._held[: len(self._held) - end].rstrip())  # blanks before a call are not content
        self._content(self._held[:keep])
        self._held = self._held[keep:]
        return False

    def _call(self) -> bool:
        if head := _HEAD.match(self._held):
            if (name := _text_of(head[1])) not in self.names:
                return self._not_a_call()
            self._parts.append(CallPart(self.count, "", name))
            self._held, self._state, self._depth = self._held[head.end() :], "arguments", 0
            return True
        begun = self._held.lstrip()
        if begun and not begun.startswith("{"):
            return self._not_a_call()
        if "}" not in begun:
            return False
        try:
            found, end = _DECODER.raw_decode(begun)
        except (ValueError, RecursionError):
            return False
        if not (call := _call_of(found, self.names)):
            return self._not_a_call()
        self._parts.append(CallPart(self.count, call[1], call[0]))
        self.count += 1
        self._held, self._state = begun[end:], "after"
        return True

    def _not_a_call(self) -> bool:
        self._fresh, self._state = False, "text"
        self._content(self._opened)
        return True

    def _arguments(self) -> bool:
        for i, char in enumerate(self._held):
            if self._quoted:
                self._quoted = self._escaped or char != '"'
                self._escaped = char == "\\" and not self._escaped
                continue
            self._quoted = char == '"'
            self._depth += (char in "{[") - (char in "}]")
            if not self._depth:
                self._parts.append(CallPart(self.count, self._held[: i + 1]))
                self.count += 1
                self._held, self._state, self._brace = self._held[i + 1 :], "after", True
                return True
        self._parts.append(CallPart(self.count, self._held))
        self._held = ""
        return False

    def _after(self) -> bool:
        self._held = self._held.lstrip()
        if self._brace and self._held:
            self._held, self._brace = self._held.removeprefix("}").lstrip(), False
        if self._opened and self._held != CLOSE and CLOSE.startswith(self._held):
            return False
        self._held, self._state, self._fresh = self._held.removeprefix(CLOSE).lstrip(), "text", True
        return True


def _text_of(literal: str) -> str:
    """Returns the value of a JSON string literal; "" if the literal is not valid."""
    try:
        return str(json.loads(literal, strict=False))
    except ValueError:
        return ""


def _call_of(found: Any, names: Collection[str]) -> tuple[str, str] | None:
    """Returns the name and the arguments (as JSON) of a call; None if the value is not a call of one of `names`."""
    if not isinstance(found, dict) or not isinstance(found.get("name"), str) or found["name"] not in names:
        return None
    own = found.get(ARGUMENTS, found.get(PARAMETERS))
    return (found["name"], json.dumps(own, ensure_ascii=False)) if isinstance(own, dict) else None
