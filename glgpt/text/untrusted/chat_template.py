"""Converts the messages of a conversation to token ids with the chat template of a model."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from glgpt.errors import ArgumentError, FileError, quoted, written
from glgpt.gguf.model_files import file_name, has_file
from glgpt.text.tokenizer import Tokenizer, named_tokens
from glgpt.text.untrusted.chat import CONFIG, TEMPLATE, damaged, template_source
from glgpt.text.untrusted.renderer import Renderer, RenderError

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_CHARACTERS = 1 << 19  # maximum characters of all messages as JSON, and of tools and documents together
# Private-use characters. `prompt` marks positions with two of these that neither the messages nor the template contain.
PRIVATE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
Message = Mapping[str, Any]


@dataclass(frozen=True)
class ChatPrompt:
    """The token ids of a conversation.

    `borders` are the positions in `ids` where the assistant's answers begin and end.
    """

    ids: list[int]
    borders: tuple[int, ...] = ()


def checked_messages(messages: Any) -> list[dict[str, Any]]:
    """Checks that each message has a role, and a content or tool calls; returns a copy of the messages.

    Raises ArgumentError for an empty list and, naming the message, for an unknown role or an invalid content.
    """
    if messages is None or messages == []:
        raise ArgumentError("there are no messages; give a list of messages with role and content")
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise ArgumentError(f"messages is {written(messages)}; it must be a list of messages with role and content")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            given = message.get("role") if isinstance(message, Mapping) else message
            raise ArgumentError(f"message {i}: the role is {written(given)}; it must be one of {', '.join(ROLES)}")
        content = message.get("content")
        parts = [part.get("text", "") if isinstance(part, Mapping) else None for part in _list(content)]
        if content is None and not message.get("tool_calls"):
            raise ArgumentError(f"message {i} has no content; give it a string")
        if not isinstance(content, (str, list)) and not message.get("tool_calls"):
            raise ArgumentError(f"message {i}: the content is {written(content)}; it must be a string")
        if not all(isinstance(part, str) for part in parts):
            raise ArgumentError(f"message {i}: the content must be a string, or a list of parts with type and text")
    return list(_plain("the messages", list(messages)))


def _plain(what: str, value: Any) -> Any:
    """Returns a copy of a JSON value. Raises ArgumentError for a value that is not JSON, or is too long as JSON."""
    try:
        found = json.dumps(value, ensure_ascii=False)
        found.encode()
    except (TypeError, ValueError, RecursionError) as error:  # ValueError includes lone surrogates
        raise ArgumentError(f"{what} cannot be written as JSON in UTF-8: {quoted(error, 120)}") from None
    if len(found) > MAX_CHARACTERS:
        raise ArgumentError(f"{what} have {len(found):,} characters; at most {MAX_CHARACTERS:,} are supported")
    return json.loads(found)


def _list(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


class ChatTemplate:
    """The chat template of a model, rendered in a process with limits, and the tokenizer that encodes the result.

    The ids are those of transformers' `apply_chat_template`, except that special tokens in the text of messages, tools
    and documents stay plain text: only the template writes special tokens.
    """

    def __init__(self, source: str, tools_source: str, named: Mapping[str, str], tokenizer: Tokenizer, file: Path):
        """Stores the template, the template for messages with tools, and the special tokens by role."""
        self._sources, self._named, self._tokenizer, self._file = (source, tools_source), named, tokenizer, file
        self._special = sorted(tokenizer.special.keys() - tokenizer.plain, key=lambda token: (-len(token), token))
        self._pattern = "|".join(map(re.escape, self._special)) or "(?!)"
        self.renderer = Renderer()

    @classmethod
    def load(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """Reads the template of a folder or GGUF file; None if there is none. Raises FileError for a damaged file."""
        if not (source := template_source(folder)):
            return None
        file = file_name(folder, TEMPLATE if has_file(folder, TEMPLATE) else CONFIG)
        return cls(source, template_source(folder, "tool_use") or source, named_tokens(folder), tokenizer, file)

    def mentions(self, text: str) -> bool:
        """True if the template for messages with tools has this text in its source."""
        return text in self._sources[True]

    def document(self) -> dict[str, Any]:
        """Returns the template, the template for tools if it is a different one, and the special tokens.

        The type of the result is `TemplateSource` of `page.documents.manifest`.
        """
        special = {token: self._tokenizer.special[token] for token in self._special}
        source, for_tools = self._sources
        tools = {} if for_tools == source else {"tools": for_tools}
        return {"source": source, **tools, "named": dict(self._named), "special": special}

    def prompt(
        self,
        messages: Any,
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> ChatPrompt:
        """Encodes messages; with `add_generation_prompt`, the ids end where the assistant's answer begins.

        Other keywords are variables of the template. Raises ArgumentError for unusable messages, and FileError
        if the template cannot be rendered or refuses the messages.
        """
        found = checked_messages(messages)
        others = {"tools": tools, "documents": documents} | variables
        given = {"messages": found} | _plain("tools and documents", others)
        used = set(json.dumps(given, ensure_ascii=False) + self._sources[bool(tools)])
        unused = (char for char in map(chr, chain(*PRIVATE)) if char not in used)
        mark, border = next(unused, ""), next(unused, "")
        if not border:
            raise ArgumentError("the messages contain all of Unicode's private-use characters; remove some")
        marked = self._marked(given, mark) | self._named | {"add_generation_prompt": add_generation_prompt}
        requests = [marked]
        answers = [i for i, m in enumerate(found) if m["role"] == "assistant" and isinstance(m.get("content"), str)]
        if answers:
            edged = list(marked["messages"])
            for i in answers:
                edged[i] = edged[i] | {"content": _edged(edged[i]["content"], border)}
            requests.append(marked | {"messages": edged})
        try:
            rendered, *edges = self.renderer.render(self._sources[bool(tools)], requests)
        except RenderError as error:
            raise FileError(f"{damaged(self._file)}: {quoted(error, 200)}") from None
        ids = self._encode(rendered, mark)
        # A template that inspects the text may treat the marked text differently; then borders cannot be found.
        if edges and edges[0].replace(border, "") == rendered:
            rendered = edges[0]
        return ChatPrompt(ids, self._borders(ids, rendered.replace(mark, "").split(border), add_generation_prompt))

    def _marked(self, value: Any, mark: str, key: str = "") -> Any:
        """Returns a copy of `value` with `mark` before each special token in its texts.
        `_encode` treats marked tokens as plain text. Also marks a part of a special token at the start or the end of a
        message's text. `key` is the key under which `value` is stored.
        """
        if isinstance(value, Mapping):
            whole = re.compile(self._pattern)
            return {whole.sub(rf"{mark}\g<0>", str(k)): self._marked(v, mark, str(k)) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._marked(item, mark, key) for item in value]
        if not isinstance(value, str) or not value:
            return value
        text = re.sub(self._pattern, rf"{mark}\g<0>", value)
        if key not in ("content", "text"):  # names and types: templates compare these, which marks would prevent
            return text
        # The text may begin or end with a part of a special token, and the template may write the rest next to it.
        ends = max((n for token in self._special for n in range(1, len(token)) if text.endswith(token[:n])), default=0)
        text = text[: len(text) - ends] + mark * bool(ends) + text[len(text) - ends :]
        begins = any(
            text.startswith(token[n:]) or value in token[n:] for token in self._special for n in range(1, len(token))
        )
        return mark + text if begins else text

    def _encode(self, rendered: str, mark: str) -> list[int]:
        """Encodes a rendered text without its marks; special tokens that follow or contain a mark become plain text."""
        text, written_by_template = rendered.replace(mark, ""), re.compile(f"(?<!{mark})(?:{self._pattern})")
        found = [(m.start() - rendered.count(mark, 0, m.start()), m[0]) for m in written_by_template.finditer(rendered)]
        if found == [(m.start(), m[0]) for m in re.finditer(self._pattern, text)]:
            return self._tokenizer.encode(text)
        ids, start = list[int](), 0
        for at, token in found:
            ids += self._tokenizer.encode_ordinary(text[start:at])
            ids.append(self._tokenizer.special[token])
            start = at + len(token)
        return self._tokenizer.checked(ids + self._tokenizer.encode_ordinary(text[start:]))

    def _borders(self, ids: list[int], parts: list[str], ends_in_answer: bool) -> tuple[int, ...]:
        """Returns the positions in `ids` where answers begin and end. The second, fourth, … of `parts` are answers.

        With `ends_in_answer`, another answer begins at the end of the last part. Blanks before an answer belong to the
        answer, because templates differ in whether a prompt ends with blanks. A token that spans a border counts as
        after the border.
        """
        sizes = [len(part.encode()) for part in parts]
        ends = [0, *accumulate(len(self._tokenizer.token_bytes(i)) for i in ids)]
        if ends[-1] != sum(sizes):  # the tokenizer normalizes the text, so the tokens' bytes differ
            return ()
        before = parts[::2] if ends_in_answer else parts[:-1:2]
        blanks = [len(part.encode()) - len(part.rstrip().encode()) for part in before]
        offsets = [end - (0 if i % 2 else blanks[i // 2]) for i, end in enumerate(accumulate(sizes[: len(parts) - 1]))]
        if ends_in_answer:
            offsets.append(ends[-1] - blanks[-1])
        return tuple(bisect_right(ends, offset) - 1 for offset in offsets)


def _edged(text: str, border: str) -> str:
    """Returns the text with `border` inserted before its first and after its last non-blank character."""
    if not (core := text.strip()):
        return text
    start = text.index(core)
    return f"{text[:start]}{border}{core}{border}{text[start + len(core) :]}"
