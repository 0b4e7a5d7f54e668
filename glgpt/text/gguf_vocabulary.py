"""Converts a tokenizer's files to the metadata of a GGUF file: the reverse of `gguf.tokenizer_files`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from glgpt.errors import FileError, GlgptError, quoted
from glgpt.gguf.model_files import has_file
from glgpt.gguf.reader import GgufFile, is_gguf, open_gguf
from glgpt.gguf.tokenizer_files import (
    BLANK,
    BYTE,
    CONTROL,
    NORMAL,
    NORMALIZERS,
    PRE_TOKENIZERS,
    PREFIX,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    WHOLE_WORDS,
    tokenizer_files,
)
from glgpt.system.files import read_json
from glgpt.text.tokenizer import COMBINED, EOS, load_tokenizer, named_tokens, plain_files
from glgpt.text.tokenizer_training import copy_model_tokenizer
from glgpt.text.untrusted.chat import template_source
from glgpt.text.untrusted.tokenizer_document import Document, checked_document, steps

_MARKS_BLANKS = {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
_ENDS = ("eos", "eot", "eom")  # keys of the end-of-text tokens


@dataclass(frozen=True)
class _Parts:
    """The parts of a BPE tokenizer that GGUF stores. The tokens in `special` become control tokens."""

    kind: str  # value of tokenizer.ggml.model
    pre: str  # value of tokenizer.ggml.pre: the name of the rule that splits texts into words
    vocab: Mapping[str, int]
    merges: Sequence[tuple[str, str]]
    added: Mapping[str, int]
    special: set[str]
    around: tuple[Sequence[int], Sequence[int]]  # ids before and after a prompt
    space: bool = False  # True if a space is added before a text


def vocabulary(model: Path, vocab_size: int, ends: Sequence[int]) -> dict[str, Any]:
    """Returns the metadata of a model's tokenizer and its chat template; `ends` are the ids that end a text.

    Raises GlgptError, naming the file, for a tokenizer that GGUF cannot hold.
    """
    if is_gguf(model):
        return {key: value for key, value in open_gguf(model).metadata.items() if key.startswith("tokenizer.")}
    tokenizer = load_tokenizer(model, vocab_size)
    if tokenizer is None:
        return {f"{PREFIX}model": "none"}
    with tempfile.TemporaryDirectory() as name:
        if not has_file(model, COMBINED) and not has_file(model, "vocab.json"):  # the model uses GPT-2's tokenizer
            copy_model_tokenizer(model, vocab_size, Path(name))
        parts = _parts(Path(name) if any(Path(name).iterdir()) else model, model)
    named = named_tokens(model)
    known = {**parts.vocab, **parts.added}
    found = {f"{PREFIX}model": parts.kind, f"{PREFIX}pre": parts.pre} | _tokens(parts, known, named, vocab_size, model)
    ids = {short: known[named[role]] for role, short in _ROLES.items() if named.get(role) in known}
    if len(ends) > len(_ENDS):
        raise GlgptError(
            f"{quoted(model, 300)}: GGUF has places for {len(_ENDS)} of its {len(ends)} end-of-text tokens"
        )
    ids |= dict(zip(_ENDS, ends, strict=False))
    if "bos" not in ids and EOS in known:
        ids["bos"] = known[EOS]
    found |= {f"{PREFIX}{short}_token_id": token for short, token in ids.items()}
    found |= {f"{PREFIX}add_{role}_token": bool(side) for role, side in zip(("bos", "eos"), parts.around, strict=True)}
    if parts.kind == "llama":
        found[f"{PREFIX}add_space_prefix"] = parts.space
    for role, side in zip(("bos", "eos"), parts.around, strict=True):
        if side and list(side) != [ids.get(role)]:
            raise GlgptError(f"{quoted(model, 300)}: GGUF cannot hold its tokenizer, which adds more than BOS and EOS")
    if template := template_source(model):
        found["tokenizer.chat_template"] = template
    _check_merges(found, parts, {*parts.added, *named.values()}, model)
    return found


def _parts(folder: Path, model: Path) -> _Parts:
    if has_file(folder, COMBINED):
        document = checked_document(read_json(folder / COMBINED), folder / COMBINED)
        if document is None:
            raise FileError(f"{quoted(model, 300)}: tokenizer.json is not a BPE tokenizer")
        return _of_document(document)
    files = plain_files(folder)
    if files.prefix_space:
        raise GlgptError(f"{quoted(model, 300)}: GGUF cannot hold a byte-level tokenizer with add_prefix_space")
    special = {EOS, *files.named.values(), *files.added}
    return _Parts("gpt2", "gpt-2", files.vocab, files.merges, files.added, special, files.around)


def _of_document(document: Document) -> _Parts:
    whole, name = document.whole, quoted(document.path, 300)
    special = {token.content for token in whole.added_tokens if token.special}
    common = (document.vocab, document.merges, document.added, special, document.around)
    if whole.model.byte_fallback:
        return _Parts("llama", "default", *common, _adds_space(document))
    used = _comparable(document.dump("pre_tokenizer"))
    normalizers = [step.model_dump() for step in steps(whole.normalizer)]
    for pre, known in PRE_TOKENIZERS.items():
        wanted = [NORMALIZERS[pre]] if pre in NORMALIZERS else []
        same = normalizers == wanted and whole.model.ignore_merges == (pre in WHOLE_WORDS)
        if used == known and same:
            return _Parts("gpt2", pre, *common)
    raise GlgptError(
        f"{name}: GGUF has no name for its normalizer, pre-tokenizer and ignore_merges; "
        f"known are {', '.join(PRE_TOKENIZERS)}"
    )


def _adds_space(document: Document) -> bool:
    """True if a SentencePiece tokenizer adds a space before a text.

    Raises GlgptError if the tokenizer does not replace blanks by BLANK, or has a step that GGUF cannot hold.
    """
    name = quoted(document.path, 300)
    adds = marks = False
    for step in (*steps(document.whole.normalizer), *steps(document.whole.pre_tokenizer)):
        used = step.model_dump()
        if used == _MARKS_BLANKS:
            marks = True
        elif used["type"] == "Metaspace" and used["replacement"] == BLANK:
            marks = True
            adds |= used["prepend_scheme"] != "never" and used["add_prefix_space"] is not False
        elif used == {"type": "Prepend", "prepend": BLANK}:
            adds = True
        elif (used["type"], used.get("pattern")) != ("Split", {"String": " "}):
            raise GlgptError(f"{name}: GGUF cannot hold the step {used['type']} of its tokenizer")
    if not marks:
        raise GlgptError(f"{name}: GGUF cannot hold a byte_fallback tokenizer that does not replace blanks by {BLANK}")
    return adds


def _comparable(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the steps of a pre-tokenizer in the format of the values of PRE_TOKENIZERS."""
    found = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer])
    return [step | {"trim_offsets": True} if step and step["type"] == "ByteLevel" else step for step in found]


def _tokens(
    parts: _Parts, known: Mapping[str, int], named: Mapping[str, str], vocab_size: int, model: Path
) -> dict[str, Any]:
    """Returns the metadata of the tokens: their texts by id, their types, and their merges (gpt2) or scores (llama)."""
    if max(known.values(), default=0) >= vocab_size:
        raise GlgptError(f"{quoted(model, 300)}: the tokenizer has more ids than the model's {vocab_size}")
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    types = np.full(vocab_size, UNUSED, np.int32)
    for token, i in known.items():
        tokens[i], types[i] = token, NORMAL
        if token in parts.special or token in named.values():
            types[i] = CONTROL
        elif token in parts.added:
            types[i] = USER_DEFINED
            if parts.kind == "llama":
                # Readers search a text for these tokens before they replace its blanks by BLANK.
                tokens[i] = token.replace(BLANK, " ")
        elif parts.kind == "llama" and _BYTE.fullmatch(token):
            types[i] = BYTE
    found: dict[str, Any] = {f"{PREFIX}tokens": tokens, f"{PREFIX}token_type": types}
    if parts.kind == "gpt2":
        return found | {f"{PREFIX}merges": [f"{left} {right}" for left, right in parts.merges]}
    if named.get("unk_token") in known:
        types[known[named["unk_token"]]] = UNKNOWN
    scores = np.full(vocab_size, -float(len(parts.merges) + 1), np.float32)
    for rank, (left, right) in reversed(list(enumerate(parts.merges))):
        scores[known[left + right]] = -rank
    return found | {f"{PREFIX}scores": scores}


def _check_merges(found: dict[str, Any], parts: _Parts, whole: set[str], model: Path) -> None:
    """Raises GlgptError if a reader could not derive the merges of a SentencePiece tokenizer from its scores.

    Merges that make tokens in `whole` are not compared: readers find these tokens in the text before they apply merges.
    The order of merges that make the same token is not compared either: scores do not express this order, and it
    differs between versions of `transformers`.
    """
    if parts.kind == "llama":
        again = tokenizer_files(GgufFile(model, found, {}))["tokenizer.json"]["model"]["merges"]
        if _groups(again, whole) != _groups(parts.merges, whole):
            raise GlgptError(f"{quoted(model, 300)}: GGUF cannot hold the merges of its tokenizer")


def _groups(merges: Iterable[Sequence[str]], whole: set[str]) -> list[tuple[str, set[tuple[str, ...]]]]:
    """Groups adjacent merges that make the same token. Omits the tokens in `whole`.

    Returns a list of pairs: a token and the set of its merges.
    """
    made = [("".join(pair).replace(" ", BLANK), tuple(pair)) for pair in merges]
    kept = [(token, pair) for token, pair in made if token not in whole]
    return [(token, {pair for _, pair in group}) for token, group in groupby(kept, key=itemgetter(0))]
