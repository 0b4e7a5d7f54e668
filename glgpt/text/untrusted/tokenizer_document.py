"""Reads tokenizer.json: the supported parts, each with limits, so that no file can crash or exhaust an engine.

An engine is the code that runs the tokenizer: tiktoken, the `tokenizers` library, or the page's own code.
Only the fields declared here reach an engine. Other fields, including truncation, padding and dropout, are dropped.
A file with another kind of normalizer, pre-tokenizer, post-processor or decoder is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from glgpt.errors import FileError, quoted
from glgpt.text.token_ids import MAX_IDS, MAX_MERGES, MAX_SPECIAL_TOKENS, added_ids, checked_ids
from glgpt.text.untrusted.patterns import checked_pattern

MAX_STEPS = 16  # maximum steps of a part of type `Sequence`
MAX_GROWTH = 8  # maximum characters to which a normalizer's replacements may expand one character
_Id = Annotated[int, Field(ge=0, lt=MAX_IDS)]
_Token = Annotated[str, Field(max_length=256)]
_Short = Annotated[str, Field(max_length=64)]
_Flag = Annotated[bool, BeforeValidator(lambda value: value or False)]  # null means false


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", defer_build=True)


class _Text(_Part):
    String: Annotated[str, Field(min_length=1, max_length=256)]


class _Regex(_Part):
    Regex: Annotated[str, AfterValidator(checked_pattern)]


class ByteLevel(_Part):
    """Represents each byte as a letter; may be a normalizer, a pre-tokenizer, a post-processor or a decoder."""

    type: Literal["ByteLevel"]
    add_prefix_space: bool = True
    trim_offsets: bool = True
    use_regex: bool = True


class Metaspace(_Part):
    """Replaces the blanks before words by another character; a pre-tokenizer or a decoder."""

    type: Literal["Metaspace"]
    replacement: Annotated[str, Field(min_length=1, max_length=1)]
    prepend_scheme: Literal["first", "never", "always"] = "always"
    add_prefix_space: bool | None = None  # in older files
    split: bool = True


# Normalizers


class _Unicode(_Part):
    type: Literal["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents"]


class _Strip(_Part):
    type: Literal["Strip"]
    strip_left: bool = True
    strip_right: bool = True


class _Prepend(_Part):
    type: Literal["Prepend"]
    prepend: _Short


class _Replace(_Part):
    type: Literal["Replace"]
    pattern: _Text | _Regex
    content: _Short

    def growth(self) -> float:
        """Returns the maximum number of characters that replace one character.

        A regex may match the empty text before a character, which then adds `content` to the character.
        """
        if isinstance(self.pattern, _Text):
            return len(self.content) / len(self.pattern.String)
        return 1 + len(self.content)


_Normalizer = Annotated[_Unicode | _Strip | _Prepend | _Replace | ByteLevel, Field(discriminator="type")]


class _Normalizers(_Part):
    type: Literal["Sequence"]
    steps: Annotated[list[_Normalizer], Field(max_length=MAX_STEPS, alias="normalizers")]


# Pre-tokenizers

_Behavior = Literal["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


class _Whitespace(_Part):
    type: Literal["Whitespace", "WhitespaceSplit"]


class _Split(_Part):
    type: Literal["Split"]
    pattern: _Text | _Regex
    behavior: _Behavior
    invert: bool = False


class _Digits(_Part):
    type: Literal["Digits"]
    individual_digits: bool = False


class _Punctuation(_Part):
    type: Literal["Punctuation"]
    behavior: _Behavior = "Isolated"


_PreTokenizer = Annotated[
    _Whitespace | _Split | _Digits | _Punctuation | ByteLevel | Metaspace, Field(discriminator="type")
]


class _PreTokenizers(_Part):
    type: Literal["Sequence"]
    steps: Annotated[list[_PreTokenizer], Field(max_length=MAX_STEPS, alias="pretokenizers")]


# Post-processors


class _Special(_Part):
    ids: Annotated[list[_Id], Field(max_length=64)]


class _Named(_Part):
    id: str


class _SpecialPiece(_Part):
    SpecialToken: _Named


class _Sequence(_Part):
    id: Literal["A"]


class _TextPiece(_Part):
    Sequence: _Sequence


class _Template(_Part):
    type: Literal["TemplateProcessing"]
    single: Annotated[list[_SpecialPiece | _TextPiece], Field(max_length=64)]
    special_tokens: dict[str, _Special]

    @field_validator("single")
    @classmethod
    def _one_text(cls, single: list[Any]) -> list[Any]:
        if sum(isinstance(piece, _TextPiece) for piece in single) != 1:
            raise ValueError("the template must contain the text once")
        return single

    def around(self) -> tuple[list[int], list[int]]:
        """Returns the ids before and after a text. Raises ValueError for a token without ids."""
        sides = list[int](), list[int]()
        after = False
        for piece in self.single:
            if isinstance(piece, _TextPiece):
                after = True
            elif piece.SpecialToken.id not in self.special_tokens:
                raise ValueError(f"the template names {quoted(piece.SpecialToken.id)}, which has no ids")
            else:
                sides[after].extend(self.special_tokens[piece.SpecialToken.id].ids)
        return sides


class _Pair(_Part):
    type: Literal["BertProcessing", "RobertaProcessing"]
    before: Annotated[tuple[str, _Id], Field(alias="cls", strict=False)]
    after: Annotated[tuple[str, _Id], Field(alias="sep", strict=False)]

    def around(self) -> tuple[list[int], list[int]]:
        """Returns the ids before and after a text."""
        return [self.before[1]], [self.after[1]]


_PostProcessor = Annotated[ByteLevel | _Template | _Pair, Field(discriminator="type")]


class _PostProcessors(_Part):
    type: Literal["Sequence"]
    steps: Annotated[list[_PostProcessor], Field(max_length=MAX_STEPS, alias="processors")]


# Decoders


class _Bytes(_Part):
    type: Literal["ByteFallback", "Fuse", "Strip"]


class _Back(_Part):
    type: Literal["Replace"]
    pattern: _Text
    content: _Short


_Decoder = Annotated[ByteLevel | Metaspace | _Bytes | _Back, Field(discriminator="type")]


class _Decoders(_Part):
    type: Literal["Sequence"]
    steps: Annotated[list[_Decoder], Field(max_length=MAX_STEPS, alias="decoders")]


# The whole file


class Added(_Part):
    """A token that is searched for before the text is split. The token's id in the file is ignored: see `added_ids`."""

    content: _Token
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _AddedId(Added):
    id: _Id


class _Bpe(_Part):
    type: Literal["BPE"] = "BPE"
    # `checked_document` checks the items, because pydantic is slow for many. `tsType` is the type of checked items.
    vocab: Annotated[dict[str, Any], Field(json_schema_extra={"tsType": "Readonly<Record<string, number>>"})]
    merges: Annotated[list[Any], Field(max_length=MAX_MERGES)]
    unk_token: str | None = None
    continuing_subword_prefix: Literal["", None] = None
    end_of_word_suffix: Literal["", None] = None
    fuse_unk: _Flag = False
    byte_fallback: _Flag = False
    ignore_merges: _Flag = False


class _Whole(_Part):
    model: _Bpe
    added_tokens: Annotated[
        Sequence[Added], Field(max_length=MAX_SPECIAL_TOKENS), BeforeValidator(lambda value: value or [])
    ] = []
    normalizer: Annotated[_Normalizers | _Normalizer, Field(discriminator="type")] | None = None
    pre_tokenizer: Annotated[_PreTokenizers | _PreTokenizer, Field(discriminator="type")] | None = None
    post_processor: Annotated[_PostProcessors | _PostProcessor, Field(discriminator="type")] | None = None
    decoder: Annotated[_Decoders | _Decoder, Field(discriminator="type")] | None = None

    @field_validator("normalizer")
    @classmethod
    def _bounded(cls, normalizer: _Part | None) -> _Part | None:
        growth = math.prod(max(1.0, step.growth()) for step in steps(normalizer) if isinstance(step, _Replace))
        if growth > MAX_GROWTH:
            raise ValueError(f"the replacements expand one character to more than {MAX_GROWTH}")
        return normalizer

    @field_validator("post_processor")
    @classmethod
    def _one_template(cls, processor: _Part | None) -> _Part | None:
        if sum(not isinstance(step, ByteLevel) for step in steps(processor)) > 1:
            raise ValueError("more than one step adds special tokens")
        return processor


class PageTokenizer(_Whole):
    """The tokenizer.json of an exported page: a checked file, to which the export adds the fields declared here."""

    version: Annotated[Literal[3], Field(alias="schema")]
    added_tokens: Annotated[Sequence[_AddedId], Field(max_length=MAX_SPECIAL_TOKENS)]
    prefix: Annotated[list[_Id], Field(description="ids that the tokenizer adds before a prompt")]
    suffix: Annotated[list[_Id], Field(description="ids that the tokenizer adds after a prompt")]
    vocab_size: Annotated[int, Field(ge=1, le=MAX_IDS)]


def steps(part: Any) -> list[Any]:
    """Returns the steps of a part of type `Sequence`; [part] for another type, and [] for None."""
    return [] if part is None else getattr(part, "steps", [part])


@dataclass(frozen=True)
class Document:
    """A checked tokenizer.json: `vocab` and `added` (tokens that are never split) map tokens to ids."""

    path: Path
    vocab: Mapping[str, int]
    merges: list[tuple[str, str]]
    added: Mapping[str, int]
    around: tuple[list[int], list[int]]  # ids before and after a prompt
    whole: _Whole

    @property
    def plain(self) -> frozenset[str]:
        """Returns the added tokens that are not special."""
        return frozenset(token.content for token in self.whole.added_tokens if not token.special)

    def dump(self, part: Literal["normalizer", "pre_tokenizer", "decoder"]) -> dict[str, Any] | None:
        """Returns a part in the file's format, with defaults for missing fields; None if it is absent or empty."""
        found = getattr(self.whole, part)
        return dict(found.model_dump(by_alias=True, exclude_none=True)) if steps(found) else None

    def parts(self) -> dict[str, Any]:
        """Returns the checked parts that affect a text's ids, as in a tokenizer.json."""
        model = self.whole.model.model_dump() | {"vocab": self.vocab, "merges": self.merges}
        tokens = [t.model_dump() | {"id": self.added[t.content]} for t in self.whole.added_tokens if t.content]
        parts = {"normalizer": self.dump("normalizer"), "pre_tokenizer": self.dump("pre_tokenizer")}
        return {"added_tokens": tokens, **parts, "model": model}

    def for_engine(self) -> str:
        """Returns the `parts` as the text of a tokenizer.json for the `tokenizers` library."""
        none = dict.fromkeys(("truncation", "padding", "post_processor", "decoder"))
        return json.dumps({"version": "1.0", **none, **self.parts()})


def checked_document(whole: Mapping[str, Any], path: Path) -> Document | None:
    """Checks the object of the tokenizer.json at `path`; returns None if its model is not BPE.

    Raises FileError, naming the field, for a damaged file and for an unsupported part.
    """
    name = quoted(path, 300)
    if isinstance(model := whole.get("model"), dict) and model.get("type", "BPE") != "BPE":
        return None
    try:
        parts = _Whole.model_validate(whole)
    except ValidationError as error:
        raise FileError(f"{name}{_problem(error)}") from None
    vocab = checked_ids(parts.model.vocab, path)
    try:
        pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in parts.model.merges)
        merges = [(str(left), str(right)) for left, right in pairs]
        around = next((step.around() for step in steps(parts.post_processor) if not isinstance(step, ByteLevel)), None)
    except (TypeError, ValueError) as error:
        raise FileError(f"{name} is damaged: it is not laid out as a BPE tokenizer: {quoted(error, 120)}") from None
    if parts.model.unk_token is not None and parts.model.unk_token not in vocab:
        raise FileError(f"{name}: model.unk_token {quoted(parts.model.unk_token)} is not in the vocabulary")
    added = added_ids(vocab, [token.content for token in parts.added_tokens])
    return Document(path, vocab, merges, added, around or ([], []), parts)


def _problem(error: ValidationError) -> str:
    """Returns the end of an error message, after the file's name: the field and what is wrong with it."""
    errors = error.errors(include_url=False, include_input=False)
    # An unsupported regex gives two errors: its own, and "missing", because `_Text` does not match either.
    first = min(errors, key=lambda e: e["type"] == "missing")
    field = quoted(".".join(str(at) for at in first["loc"] if not str(at).startswith("_")), 120)
    if first["type"] == "union_tag_invalid":
        context = first["ctx"]
        return f": {field}: {quoted(context['tag'])} is not supported; supported are {context['expected_tags']}"
    why = quoted(first["msg"].removeprefix("Value error, "), 200)
    if first["type"] in ("value_error", "too_long", "string_too_long"):
        return f": {field}: {why}"
    return f" is damaged: tokenizers cannot read it: {field}: {why}"
