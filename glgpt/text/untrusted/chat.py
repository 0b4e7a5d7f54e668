"""Reads the chat template of an instruct model: the token ids and text around a user's message."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glgpt.errors import FileError, quoted
from glgpt.gguf.model_files import file_name, has_file, read_model_json, read_model_text
from glgpt.text.tokenizer import Tokenizer

TEMPLATE, CONFIG = "chat_template.jinja", "tokenizer_config.json"
MAX_BYTES = 1 << 18  # of a template
TIMEOUT_S = 60.0  # wall time of the process that renders it; the process itself limits its CPU time
# Without the current folder, which may be a stranger's and hold modules such as json.py
_COMMAND = (
    "import sys; sys.path[:] = sys.argv[1:]; from glgpt.text.untrusted.render_template import main; sys.exit(main())"
)
_MESSAGE = "\ue000message\ue001"  # placeholder of the user's text, with private-use characters
_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")  # variables that a template may use


@dataclass(frozen=True)
class Chat:
    """The format of a user's message and the start of the model's answer.

    `pieces` are ids of special tokens, texts between them, and None for the user's message.
    """

    pieces: tuple[int | str | None, ...]

    def encode(self, tokenizer: Tokenizer, message: str) -> list[int]:
        """Encodes a user's message in the chat format; special tokens in the message are treated as plain text.

        Raises GlgptError if the vocabulary lacks a byte of it.
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
    """Reads the chat template of a checkpoint's folder or GGUF file; returns None if it has none.

    Raises FileError, naming the file, for a template that cannot be rendered or omits the message.
    """
    source, config = template_source(folder), _config(folder)
    file = file_name(folder, TEMPLATE if has_file(folder, TEMPLATE) else CONFIG)
    if not source:
        return None
    rendered = _rendered(source, _variables(config), file)
    if rendered.count(_MESSAGE) != 1:
        raise FileError(f"{_damaged(file)}: it has the user's message {rendered.count(_MESSAGE)} times instead of once")
    special = {**tokenizer.special, _MESSAGE: -1}
    longest_first = sorted(special, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", rendered)
    pieces = (special.get(part, part) for part in parts if part)
    return Chat(tuple(None if piece == -1 else piece for piece in pieces))


def template_source(folder: Path) -> str | None:
    """Returns the chat template of a folder or GGUF file; None if it has none. Raises FileError for a damaged file."""
    if has_file(folder, TEMPLATE):
        return read_model_text(folder, TEMPLATE, MAX_BYTES)
    return _default(_config(folder).get("chat_template"))


def _config(folder: Path) -> dict[str, Any]:
    return read_model_json(folder, CONFIG) if has_file(folder, CONFIG) else {}


def _default(template: Any) -> str | None:
    """Returns the template of tokenizer_config.json, a string or a list of named ones; None if there is none."""
    if isinstance(template, list):
        named = {str(t.get("name")): t.get("template") for t in template if isinstance(t, Mapping)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _variables(config: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in _TOKENS:
        token = config.get(name)
        token = token.get("content") if isinstance(token, Mapping) else token
        found[name] = token if isinstance(token, str) else ""
    return {**found, "messages": [{"role": "user", "content": _MESSAGE}], "add_generation_prompt": True}


def _damaged(file: Path) -> str:
    return f"{quoted(file, 300)}: the chat template cannot be used"


def _rendered(source: str, variables: Mapping[str, Any], file: Path) -> str:
    """Renders a template in a process with limits on time and memory, since it is an untrusted program."""
    command = [sys.executable, "-c", _COMMAND, *sys.path]
    asked = json.dumps({"template": source, "variables": variables})
    try:
        done = subprocess.run(command, input=asked.encode(), capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise FileError(f"{_damaged(file)}: rendering it took more than {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it took too much time or memory"]
        raise FileError(f"{_damaged(file)}: {quoted(lines[-1], 200)}")
    return done.stdout.decode("utf-8")
