"""Runs BPE tokenizers that tiktoken cannot run, with Hugging Face's `tokenizers` library."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from glgpt.errors import FileError, GlgptError, quoted
from glgpt.text.tokenizer import EOS, Tokenizer, letter_bytes
from glgpt.text.untrusted.tokenizer_document import Document, steps

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class HFTokenizer(Tokenizer):
    """A tokenizer that runs on the `tokenizers` library, because tiktoken cannot run it.

    For example, the tokenizer has a normalizer, or splits a text by a rule that `gguf.splits` lacks.
    """

    def __init__(self, document: Document, vocab_size: int | None, named: Mapping[str, str]) -> None:
        """Loads a tokenizer.json. Raises FileError if it is damaged.

        `named` maps roles, such as "eos_token", to the configured special tokens.
        """
        from tokenizers import Tokenizer as Engine

        self._name, self._document = quoted(document.path, 300), document
        with _refused(FileError, f"{self._name} is damaged: tokenizers cannot read it"):
            self._engine = Engine.from_str(document.for_engine())
            vocab = self._engine.get_vocab(with_added_tokens=True)
            # Adding a token again would reset its options for the blanks around it (lstrip and rstrip).
            others = [text for text in named.values() if text in vocab and text not in document.added]
            self._engine.add_special_tokens(others)
            special = {about.content: token for token, about in self._engine.get_added_tokens_decoder().items()}
        decoded = _decoding(document)
        # `special` has all added tokens. The decoder applies to those in `plain`, such as runs of blanks.
        whole = special.keys() - document.plain
        tokens = {token: text.encode() if text in whole else decoded(text) for text, token in vocab.items()}
        size = vocab_size or 1 + max(tokens, default=0)
        eos = special.get(named.get("eos_token", EOS))
        super().__init__(tokens, special, self._ordinary_ids, size, eos, split=None)
        self.prompt_prefix, self.prompt_suffix = document.around
        self.plain = document.plain - set(named.values())

    def document(self) -> dict[str, Any]:
        """Returns a tokenizer.json for the page."""
        found = self._document.parts() | {"decoder": self._document.dump("decoder")}
        listed = {token["content"] for token in found["added_tokens"]}
        named = [{"content": t, "id": i, "special": True} for t, i in self.special.items() if t not in listed]
        return found | {"added_tokens": [*found["added_tokens"], *named]}

    def _ordinary_ids(self, text: str) -> list[int]:
        self._engine.encode_special_tokens = True  # treats special tokens as plain text
        try:
            return self._engine_ids(text)
        finally:
            self._engine.encode_special_tokens = False

    def _engine_ids(self, text: str) -> list[int]:
        with _refused(GlgptError, f"{self._name}: tokenizers cannot encode the text"):
            return list(self._engine.encode(text, add_special_tokens=False).ids)

    def encode(self, text: str) -> list[int]:
        """Encodes `text`; each special token in it becomes a single id."""
        return self.checked(self._engine_ids(text))

    def encode_ordinary(self, text: str) -> list[int]:
        """Encodes `text`, treating special tokens that are not in `plain` as ordinary text."""
        return self.checked(self._ordinary_ids(text))


@contextlib.contextmanager
def _refused(kind: type[GlgptError], what: str) -> Iterator[None]:
    """Converts an error or panic of the library to an error of type `kind`, whose message begins with `what`."""
    try:
        yield
    except GlgptError:
        raise
    except BaseException as error:  # a panic is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what}: {quoted(error, 120)}") from None


def _decoding(document: Document) -> Callable[[str], bytes]:
    """Returns a function that decodes a token to bytes as the document's decoder does.

    If the document has no decoder, \u2581 stands for a blank, unless the pre-tokenizer represents bytes as letters.
    """
    parts = steps(document.whole.decoder)
    kinds = {part.type for part in parts or steps(document.whole.pre_tokenizer)}
    single = document.whole.model.byte_fallback or "ByteFallback" in kinds
    texts = [(part.pattern.String, part.content) for part in parts if part.type == "Replace"]
    texts += [(part.replacement, " ") for part in parts if part.type == "Metaspace"]
    texts = texts if parts else [("\u2581", " ")]

    def decoded(token: str) -> bytes:
        if "ByteLevel" in kinds:
            return letter_bytes(token)
        if single and (found := _BYTE.fullmatch(token)):
            return bytes([int(found[1], 16)])
        for old, new in texts:
            token = token.replace(old, new)
        return token.encode("utf-8", errors="replace")

    return decoded
