"""Provides small tokenizer.json documents with the layouts of published models.

Each document has a few hundred tokens. Its layout (normalizer, pre-tokenizer, post-processor, decoder, flags of the
model) equals that of the published file.
"""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import tokenizers

from glgpt.gguf.splits import LLAMA3, QWEN2, TEKKEN
from glgpt.text.tokenizer import LETTER_BYTE

Document = dict[str, Any]
_PAIRS = "t h,th e,i n,e r,a n,o u,n d,an d,b e,t o,o r,n o,no t,1 2".split(",")  # merges in every layout


def _added(content: str, token: int, **flags: bool) -> Document:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": content, **plain, "special": True, **flags}


def _template(before: dict[str, int]) -> Document:
    """Returns a post-processor that adds special tokens before a text."""
    special = {name: {"id": name, "ids": [token], "tokens": [name]} for name, token in before.items()}
    first = [{"SpecialToken": {"id": name, "type_id": 0}} for name in before]
    single = [*first, {"Sequence": {"id": "A", "type_id": 0}}]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


def _model(vocab: dict[str, int], merges: list[Any], **flags: Any) -> Document:
    model: Document = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return model | flags | {"vocab": vocab, "merges": merges}


def _whole(model: Document, added: list[Document], **parts: Any) -> Document:
    whole: Document = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    empty = dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return whole | empty | parts | {"model": model}


_BYTE_LEVEL: Document = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _by_bytes(special: list[str], first: bool = False, pairs: bool = False) -> tuple[dict[str, int], list[Any]]:
    """Returns a byte-level vocabulary and its merges.

    The vocabulary begins with the special tokens if `first`, and otherwise does not contain them. A merge is a list of
    two tokens if `pairs`, and otherwise a text such as "t h".
    """
    names = [*special, *LETTER_BYTE] if first else list(LETTER_BYTE)
    merges = [*_PAIRS, "Ġ the", "Ġ be"]
    names += [merge.replace(" ", "") for merge in merges]
    return {name: i for i, name in enumerate(names)}, [merge.split(" ") if pairs else merge for merge in merges]


def _sequence(*steps: Document) -> Document:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def _split(regex: str) -> Document:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def _gpt2() -> Document:
    vocab, merges = _by_bytes([])
    end = _added("<|endoftext|>", len(vocab), normalized=True)
    vocab["<|endoftext|>"] = len(vocab)
    parts = {"pre_tokenizer": _BYTE_LEVEL, "post_processor": _BYTE_LEVEL | {"add_prefix_space": True}}
    return _whole(_model(vocab, merges), [end], **parts, decoder=_BYTE_LEVEL)


def _neox() -> Document:
    """Returns the layout of Pythia and OLMo."""
    vocab, merges = _by_bytes(["<|endoftext|>", "<|padding|>"], first=True)
    added = [_added("<|endoftext|>", 0), _added("<|padding|>", 1)]
    added += [_added("  ", len(vocab), normalized=True, special=False)]
    parts = {"normalizer": {"type": "NFC"}, "pre_tokenizer": _BYTE_LEVEL, "post_processor": _BYTE_LEVEL}
    return _whole(_model(vocab, merges), added, **parts, decoder=_BYTE_LEVEL)


def _smollm() -> Document:
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocab, merges = _by_bytes(special, first=True)
    steps = _sequence({"type": "Digits", "individual_digits": True}, _BYTE_LEVEL)
    added = [_added(name, i) for i, name in enumerate(special)]
    return _whole(_model(vocab, merges), added, pre_tokenizer=steps, decoder=_BYTE_LEVEL)


def _every_pair(vocab: dict[str, int], merges: list[Any]) -> list[Any]:
    """Returns all pairs of tokens that together give a token of `merges`, as in files converted from tiktoken."""
    wholes = dict.fromkeys("".join(pair) for pair in merges)
    splits = [(whole[:i], whole[i:]) for whole in wholes for i in range(1, len(whole))]
    return [[left, right] for left, right in splits if left in vocab and right in vocab]


def _llama3(every: bool = True) -> Document:
    vocab, merges = _by_bytes([], pairs=True)
    merges = _every_pair(vocab, merges) if every else merges
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"]
    added = [_added(name, len(vocab) + i) for i, name in enumerate(special)]
    steps = _sequence(_split(LLAMA3.pattern), _BYTE_LEVEL | {"use_regex": False})
    template = _template({special[0]: len(vocab)})
    after = {"type": "Sequence", "processors": [_BYTE_LEVEL, template]}
    model = _model(vocab, merges, ignore_merges=True)
    return _whole(model, added, pre_tokenizer=steps, post_processor=after, decoder=_BYTE_LEVEL)


def _qwen2() -> Document:
    vocab, merges = _by_bytes([])
    names = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    added = [_added(name, len(vocab) + i) for i, name in enumerate(names)]
    plain = _BYTE_LEVEL | {"use_regex": False, "trim_offsets": False}
    parts = {"normalizer": {"type": "NFC"}, "pre_tokenizer": _sequence(_split(QWEN2), plain), "post_processor": plain}
    return _whole(_model(vocab, merges), added, **parts, decoder=plain)


def _nemo() -> Document:
    vocab, merges = _by_bytes(["<unk>", "<s>", "</s>"], first=True)
    added = [_added(name, i) for i, name in enumerate(("<unk>", "<s>", "</s>"))]
    steps = _sequence(_split(TEKKEN), _BYTE_LEVEL | {"use_regex": False})
    model = _model(vocab, merges, ignore_merges=True)
    return _whole(model, added, pre_tokenizer=steps, post_processor=_template({"<s>": 1}), decoder=_BYTE_LEVEL)


# Layouts of tokenizers that were converted from SentencePiece


def _by_pieces() -> tuple[dict[str, int], list[str]]:
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = [chr(i) for i in range(33, 127)] + ["▁", "é", "ï", "日", "本"]
    merges = [*_PAIRS, "▁ the", "▁ a", "▁ ▁", "▁▁ ▁▁"]
    names += letters + [merge.replace(" ", "") for merge in merges]
    return {name: i for i, name in enumerate(names)}, merges


_BLANK = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
_PIECES_TO_TEXT = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
]
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _spm(added: list[Document] | None = None, strip: bool = True, **parts: Any) -> Document:
    vocab, merges = _by_pieces()
    added = added or [_added(name, i) for i, name in enumerate(("<unk>", "<s>", "</s>"))]
    model = _model(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    decoder = {"type": "Sequence", "decoders": [*_PIECES_TO_TEXT, *([_STRIP] if strip else [])]}
    parts = {"post_processor": _template({"<s>": 1}), "decoder": decoder} | parts
    return _whole(model, added, **parts)


_PREPEND = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _BLANK]}


def _metaspace(scheme: str) -> Document:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}


def _phi3() -> Document:
    rows = [("<unk>", {}), ("<s>", {}), ("</s>", {"rstrip": True, "special": False})]
    added = [_added(name, i, **flags) for i, (name, flags) in enumerate(rows)]
    added += [_added(name, 400 + i, rstrip=True) for i, name in enumerate(("<|assistant|>", "<|end|>"))]
    document = _spm(added, normalizer=_PREPEND)
    for about in added[3:]:  # the ids from 400 become ids that follow the vocabulary
        about["id"] += len(document["model"]["vocab"]) - 400
    return document


def _gemma() -> Document:
    split = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    document = _spm(strip=False, normalizer=_BLANK, pre_tokenizer=split)
    vocab = document["model"]["vocab"]
    added = [_added(blanks, vocab[blanks], special=False) for blanks in ("▁▁", "▁▁▁▁")]
    return document | {"added_tokens": [*document["added_tokens"], *added]}


LAYOUTS: dict[str, Any] = {
    "gpt2": _gpt2,  # also of Phi 1 and 2
    "neox": _neox,
    "smollm": _smollm,
    "llama3": _llama3,  # also of SmolLM3
    "llama3-trained": lambda: _llama3(every=False),  # the merges of BPE training, not all pairs as from tiktoken
    "qwen2": _qwen2,
    "nemo": _nemo,
    "tinyllama": lambda: _spm(normalizer=_PREPEND),  # also of Llama 1 and 2, and Mistral 7B
    # Llama 2 as converted by later versions of transformers; also Mistral 7B 0.3
    "llama2": lambda: _spm(pre_tokenizer=_metaspace("first")),
    "phi3": _phi3,
    "gemma": _gemma,
}


def trained(name: str, corpus: list[str], size: int = 3000) -> Document:
    """Returns a document of the layout `name` whose merges were learned from `corpus`, without splitting into words.

    Some merges therefore join characters that the layout's pre-tokenizer separates.
    """
    document = layout(name)
    by_bytes = not document["model"]["byte_fallback"]
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    if by_bytes:
        learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    else:
        learner.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    letters = list(LETTER_BYTE) if by_bytes else ["▁", *map(chr, range(33, 127))]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=letters, limit_alphabet=len(letters),
        max_token_length=12,
    )  # fmt: skip
    learner.train_from_iterator(corpus, trainer)
    merges = json.loads(learner.to_str())["model"]["merges"]
    old = document["model"]["vocab"]
    names = [token for token in old if token not in {"".join(m).replace(" ", "") for m in document["model"]["merges"]}]
    names = list(dict.fromkeys([*names, *("".join(merge) for merge in merges)]))
    document["model"]["vocab"] = vocab = {token: i for i, token in enumerate(names)}
    pairs = isinstance(document["model"]["merges"][0], list)
    merges = _every_pair(vocab, merges) if name == "llama3" else merges
    document["model"]["merges"] = merges if pairs else [" ".join(merge) for merge in merges]
    following = itertools.count(len(vocab))
    for token in document["added_tokens"]:
        token["id"] = vocab[token["content"]] if token["content"] in vocab else next(following)
    return document


def layout(name: str, **changes: Any) -> Document:
    """Returns a document of the layout `name`, with `changes` of its top-level fields."""
    return copy.deepcopy(LAYOUTS[name]() | changes)
