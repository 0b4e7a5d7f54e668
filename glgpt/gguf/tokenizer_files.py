"""Converts a GGUF file's metadata `tokenizer.ggml.*` to the files of a Hugging Face tokenizer, such as tokenizer.json.

The result is as untrusted as the GGUF file: `glgpt.text` checks the result as it checks the files of a folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glgpt.errors import FileError, quoted, written
from glgpt.gguf.reader import GgufFile
from glgpt.gguf.splits import BYTE_LEVEL, DEFAULT, DIGITS, GPT2, LLAMA3, PLAIN_BYTES, QWEN2, TEKKEN, isolated

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of tokens
MAX_MERGES = 1 << 20
# Maximum characters of a token, and of all tokens together. `_merges` takes time in proportion to the square of a
# token's length, because it tries all ways of splitting the token in two.
MAX_TOKEN, MAX_CHARACTERS = 256, 1 << 22
BLANK = "\u2581"
NO_TOKEN = 0xFFFFFFFF  # llama.cpp's id for a role that no token has
# Hugging Face's names of the roles of tokens, by GGUF's names
ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad", "seperator": "sep", "mask": "mask"}
# Tokens that end a message. llama.cpp stops at a control token with one of these texts, regardless of the metadata.
ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>")
SAMPLING = {
    f"general.sampling.{key}": name
    for key, name in (("temp", "temperature"), ("top_k", "top_k"), ("top_p", "top_p"), ("min_p", "min_p"))
}

# Pre-tokenizers of byte-level BPE, by their names in `tokenizer.ggml.pre`
PRE_TOKENIZERS: dict[str, list[dict[str, Any]]] = {
    **{name: [*GPT2.steps] for name in ("gpt-2", "phi-2", "olmo")},
    "smollm": [*DIGITS.steps],
    **{name: [*LLAMA3.steps] for name in ("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe")},
    **{name: [isolated(QWEN2), PLAIN_BYTES] for name in ("qwen2", "deepseek-r1-qwen")},
    "tekken": [isolated(TEKKEN), PLAIN_BYTES],
    "default": [*map(isolated, DEFAULT), PLAIN_BYTES],
}
NORMALIZERS = {"qwen2": {"type": "NFC"}}  # by the name of the pre-tokenizer
# Pre-tokenizers whose tokenizers skip the merges for a word that is itself a token, and whose texts begin with BOS by
# default
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "falcon3", "tekken")


def tokenizer_files(file: GgufFile) -> dict[str, Any]:
    """Returns the contents of the tokenizer's files by name; {} if the GGUF file has no tokenizer.

    Raises FileError for a tokenizer that is neither a byte-level nor a SentencePiece BPE, and for an unknown
    pre-tokenizer.
    """
    kind, tokens = file.string(f"{PREFIX}model", "none"), file.metadata.get(f"{PREFIX}tokens")
    if kind in ("none", "no_vocab"):
        return {}
    name = quoted(file.path, 300)
    if not isinstance(tokens, list):
        raise FileError(f"{name}: {PREFIX}tokens is not a list of strings")
    if kind not in ("gpt2", "llama"):
        raise FileError(f"{name}: the tokenizer is of kind {written(kind)}; glgpt reads 'gpt2' and 'llama'")
    vocab = {token: i for i, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        twice = next(token for i, token in enumerate(tokens) if vocab[token] != i)
        raise FileError(f"{name}: {PREFIX}tokens has {written(twice)} twice")
    roles = _roles(file, tokens)
    parts = _byte_level(file, vocab) if kind == "gpt2" else _sentencepiece(file, tokens, vocab)
    document = {
        "version": "1.0",
        "added_tokens": _added(file, tokens),
        "post_processor": _template(file, roles, vocab),
        **parts,
    }
    config = {f"{role}_token": token for role, token in roles.items()}
    found: dict[str, Any] = {"tokenizer.json": document, "tokenizer_config.json": config}
    settings = {name: file.metadata[key] for key, name in SAMPLING.items() if key in file.metadata}
    if ends := _ends(file, tokens, vocab):
        settings["eos_token_id"] = ends
    if settings:
        found["generation_config.json"] = settings
    if isinstance(template := file.metadata.get("tokenizer.chat_template"), str):
        found["chat_template.jinja"] = template
    return found


def _types(file: GgufFile, count: int) -> Sequence[int]:
    """Returns the type of each of `count` tokens; all are `NORMAL` if the file does not store types."""
    types = file.metadata.get(f"{PREFIX}token_type")
    if types is None:
        return [NORMAL] * count
    if not isinstance(types, np.ndarray) or len(types) != count or types.dtype.kind not in "iu":
        raise FileError(f"{quoted(file.path, 300)}: {PREFIX}token_type is not a list of {count:,} integers")
    found: list[int] = types.tolist()
    return found


def _id(file: GgufFile, role: str, count: int) -> int | None:
    """Returns the id of the token with this role, or None if no token has the role.

    Raises FileError if the id is not from 0 to `count` - 1.
    """
    value = file.metadata.get(f"{PREFIX}{role}_token_id")
    if value is None or (isinstance(value, int) and value == NO_TOKEN):
        return None
    if type(value) is not int or not 0 <= value < count:
        raise FileError(f"{quoted(file.path, 300)}: {PREFIX}{role}_token_id is {written(value)}, not 0 to {count - 1}")
    return value


def _roles(file: GgufFile, tokens: list[str]) -> dict[str, str]:
    found = {}
    for role, short in ROLES.items():
        if (token := _id(file, role, len(tokens))) is not None:
            found[short] = tokens[token]
    return found


def _ends(file: GgufFile, tokens: list[str], vocab: Mapping[str, int]) -> list[int]:
    """Returns the ids of the tokens that end a text or a message."""
    ids = [_id(file, role, len(tokens)) for role in ("eos", "eot", "eom")]
    types = _types(file, len(tokens))
    ids += [vocab[text] for text in ENDS if text in vocab and types[vocab[text]] == CONTROL]
    return list(dict.fromkeys(token for token in ids if token is not None))


def _added(file: GgufFile, tokens: list[str]) -> list[dict[str, Any]]:
    special = {CONTROL: True, UNKNOWN: True, USER_DEFINED: False}
    return [
        {"id": i, "content": tokens[i], "special": special[kind], "normalized": False}
        for i, kind in enumerate(_types(file, len(tokens)))
        if kind in special and tokens[i]
    ]


def _template(file: GgufFile, roles: Mapping[str, str], vocab: Mapping[str, int]) -> dict[str, Any] | None:
    """Returns the post-processor that adds BOS and EOS to a text, or None if the tokenizer adds neither."""
    sentencepiece = file.metadata[f"{PREFIX}model"] == "llama"
    default = sentencepiece or file.string(f"{PREFIX}pre", "default") in WHOLE_WORDS
    before = file.metadata.get(f"{PREFIX}add_bos_token", default) is True
    after = file.metadata.get(f"{PREFIX}add_eos_token", False) is True
    around = {role: roles[role] for role, wanted in (("bos", before), ("eos", after)) if wanted and role in roles}
    if not around:
        return None
    text: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    first, last = ([{"SpecialToken": {"id": around[r], "type_id": 0}}] if r in around else [] for r in ("bos", "eos"))
    special = {t: {"id": t, "ids": [vocab[t]], "tokens": [t]} for t in around.values()}
    return {"type": "TemplateProcessing", "single": [*first, *text, *last], "pair": [], "special_tokens": special}


def _byte_level(file: GgufFile, vocab: dict[str, int]) -> dict[str, Any]:
    """Returns the parts of tokenizer.json for a byte-level BPE."""
    merges, name = file.metadata.get(f"{PREFIX}merges"), quoted(file.path, 300)
    if not isinstance(merges, list):
        raise FileError(f"{name}: {PREFIX}merges is not a list of strings")
    pre = file.string(f"{PREFIX}pre", "default")
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise FileError(f"{name}: the pre-tokenizer {written(pre)} is not supported; supported are {known}")
    steps = PRE_TOKENIZERS[pre]
    whole = {"type": "Sequence", "pretokenizers": steps} if len(steps) > 1 else steps[0]
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "ignore_merges": pre in WHOLE_WORDS}
    return {"normalizer": NORMALIZERS.get(pre), "pre_tokenizer": whole, "decoder": BYTE_LEVEL, "model": model}


def _sentencepiece(file: GgufFile, tokens: list[str], vocab: dict[str, int]) -> dict[str, Any]:
    """Returns the parts of tokenizer.json for a SentencePiece BPE, whose merges follow from the tokens' scores."""
    name, types = quoted(file.path, 300), _types(file, len(tokens))
    scores = file.metadata.get(f"{PREFIX}scores")
    if not isinstance(scores, np.ndarray) or len(scores) != len(tokens) or not np.isfinite(scores).all():
        raise FileError(f"{name}: {PREFIX}scores is not a list of {len(tokens):,} numbers")
    if max(map(len, tokens), default=0) > MAX_TOKEN or sum(map(len, tokens)) > MAX_CHARACTERS:
        raise FileError(
            f"{name}: the vocabulary has tokens that are too long; at most {MAX_TOKEN} characters per token, and "
            f"{MAX_CHARACTERS:,} in all, are supported"
        )
    merges = _merges(tokens, vocab, types, scores.tolist())
    if len(merges) > MAX_MERGES:
        raise FileError(f"{name}: the tokens can be merged in more than {MAX_MERGES:,} ways")
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]
    decoders: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": BLANK}, "content": " "}]
    decoders += [{"type": "ByteFallback"}, {"type": "Fuse"}]
    if file.metadata.get(f"{PREFIX}add_space_prefix", True) is True:
        normalizers.insert(0, {"type": "Prepend", "prepend": BLANK})
    unknown = _id(file, "unknown", len(tokens))
    model = {
        "type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": True, "fuse_unk": True,
        "unk_token": None if unknown is None else tokens[unknown],
    }  # fmt: skip
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _merges(
    tokens: list[str], vocab: Mapping[str, int], types: Sequence[int], scores: Sequence[float]
) -> list[list[str]]:
    """Returns the pairs of tokens that can be merged to another token, in descending order of that token's score.

    Pairs that give the same token are in ascending order of their ids, as in Hugging Face's conversion.
    """
    ordinary = {token for token, kind in zip(tokens, types, strict=True) if kind in (NORMAL, USER_DEFINED)}
    found = []
    for token in sorted(ordinary, key=vocab.__getitem__):
        halves = [(token[:at], token[at:]) for at in range(1, len(token))]
        pairs = [(a, b) for a, b in halves if a in ordinary and b in ordinary]
        pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
        found += [(-scores[vocab[token]], a, b) for a, b in pairs]
    found.sort(key=lambda merge: merge[0])
    return [[a, b] for _, a, b in found]
