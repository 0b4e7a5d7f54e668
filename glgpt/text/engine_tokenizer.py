"""Any other BPE tokenizer.json, on the engine that it was written for: the `tokenizers` library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glgpt.errors import FileError, quoted
from glgpt.text.tokenizer import EOS, LETTER_BYTE, Tokenizer
from glgpt.text.tokenizer_document import around_text

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class EngineTokenizer(Tokenizer):
    """A tokenizer that `tokenizers` runs; a page cannot, since its split is not one of `text.splits`."""

    def __init__(
        self, path: Path, document: Mapping[str, Any], vocab_size: int | None, named: Mapping[str, str]
    ) -> None:
        from tokenizers import Tokenizer as Engine

        try:
            self._engine = Engine.from_file(str(path))
            around = around_text(document.get("post_processor"))
        except Exception as error:  # the library raises Exception itself
            reason = quoted(str(error), 120)
            raise FileError(f"{quoted(path, 300)} is damaged: tokenizers cannot read it: {reason}") from None
        self._engine.no_truncation()
        self._engine.no_padding()
        vocab = self._engine.get_vocab(with_added_tokens=True)
        self._engine.add_special_tokens([text for text in named.values() if text in vocab])
        special = {about.content: token for token, about in self._engine.get_added_tokens_decoder().items()}
        by_letters = "ByteLevel" in str(document.get("decoder"))
        tokens = {token: _bytes(text, by_letters and text not in special) for text, token in vocab.items()}
        size = vocab_size or 1 + max(tokens, default=0)
        super().__init__(
            tokens, special, self._ordinary_ids, size, special.get(named.get("eos_token", EOS)), split=None
        )
        self.prompt_prefix, self.prompt_suffix = around

    def _ordinary_ids(self, text: str) -> list[int]:
        return list(self._engine.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; special tokens written out in it become their one id."""
        return self.checked(self._ordinary_ids(text))


def _bytes(token: str, by_letters: bool) -> bytes:
    """A token's bytes: in the letters of byte-level BPE, or as SentencePiece writes blanks and single bytes."""
    if by_letters:
        return bytes(LETTER_BYTE.get(letter, 0x3F) for letter in token)
    if found := _BYTE.fullmatch(token):
        return bytes([int(found[1], 16)])
    return token.replace("\u2581", " ").encode("utf-8", errors="replace")
