"""Reads the chat template of an instruct model: the token ids and text around a user's message."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glgpt.errors import FileError, quoted
from glgpt.gguf.model_files import file_name, has_file, read_model_json, read_model_text
from glgpt.text.tokenizer import Tokenizer, named_tokens
from glgpt.text.untrusted.renderer import Renderer, RenderError

TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
MAX_BYTES = 1 << 18  # maximum bytes of chat_template.jinja
_MESSAGE = "\ue000message\ue001"  # placeholder of the user's text, with private-use characters


@dataclass(frozen=True)
class Chat:
    """The format of a user's message and the start of the model's answer.

    `pieces` are ids of special tokens, texts between them, and None for the user's message.
    """

    pieces: tuple[int | str | None, ...]

    def encode(self, tokenizer: Tokenizer, message: str) -> list[int]:
        """Encodes a user's message in the chat format; special tokens in the message are treated as plain text.

        Raises GlgptError if the vocabulary lacks a byte of the message.
        """
        ids: list[int] = []
        text = ""
        for piece in (*self.pieces, -1):
            if not isinstance(piece, int):
                text += message if piece is None else piece
                continue
            ids += tokenizer.encode_ordinary(text)
            ids += [piece] if piece >= 0 else []
            text = ""
        return ids


def load_chat(folder: Path, tokenizer: Tokenizer) -> Chat | None:
    """Reads the chat template of a checkpoint's folder or GGUF file; returns None if the template is missing.

    Raises FileError, naming the file, if the template cannot be rendered or does not have the message exactly once.
    """
    source = template_source(folder)
    file = file_name(folder, TEMPLATE if has_file(folder, TEMPLATE) else CONFIG)
    if not source:
        return None
    rendered = _rendered(source, named_tokens(folder), file)
    if rendered.count(_MESSAGE) != 1:
        raise FileError(f"{damaged(file)}: it has the user's message {rendered.count(_MESSAGE)} times instead of once")
    special = {**tokenizer.special, _MESSAGE: -1}
    longest_first = sorted(special, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", rendered)
    pieces = (special.get(part, part) for part in parts if part)
    return Chat(tuple(None if piece == -1 else piece for piece in pieces))


def template_source(folder: Path, name: str = "default") -> str | None:
    """Returns the chat template of a folder or GGUF file; None if there is none. Raises FileError for a damaged file.

    `name` selects one of several templates that tokenizer_config.json may hold.
    """
    if has_file(folder, TEMPLATE):
        return read_model_text(folder, TEMPLATE, MAX_BYTES)
    template = _config(folder).get("chat_template")
    if isinstance(template, list):
        named = {str(t.get("name")): t.get("template") for t in template if isinstance(t, Mapping)}
        template = named.get(name)
    return template if isinstance(template, str) else None


def _config(folder: Path) -> dict[str, Any]:
    return read_model_json(folder, CONFIG) if has_file(folder, CONFIG) else {}


def damaged(file: Path) -> str:
    """Returns the start of an error message about the chat template in a file."""
    return f"{quoted(file, 300)}: the chat template cannot be used"


def _rendered(source: str, named: Mapping[str, str], file: Path) -> str:
    """Renders a template with a single user message, the placeholder `_MESSAGE`."""
    variables = {**named, "messages": [{"role": "user", "content": _MESSAGE}], "add_generation_prompt": True}
    try:
        with Renderer() as renderer:
            return renderer.render(source, [variables])[0]
    except RenderError as error:
        raise FileError(f"{damaged(file)}: {quoted(error, 200)}") from None
