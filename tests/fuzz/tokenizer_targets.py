"""Defines tokenizers as fuzzing targets: their files, the texts that they split, and BPE training.

Ids are compared with those of the `tokenizers` library, and merges with those of a trainer that counts all
pairs again after each merge.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness import Difference, Parser
from helpers.tokenizer_layouts import LAYOUTS, layout
from mutations import Files

from glgpt.checkpoint.finding import embedded_weights
from glgpt.errors import GlgptError
from glgpt.text.bpe_process import MAX_WORD_BYTES
from glgpt.text.files import Text
from glgpt.text.tokenizer import EOS, StreamDecoder, Tokenizer, load_tokenizer, spell
from glgpt.text.tokenizer_training import MIN_BPE_SIZE, train_bpe

TEXTS = (
    "To be, or not to be",
    "  a\n\nb 12,  'll é🙂\u3000 <|endoftext|> x",
    "",
    "<s> x</s>  y<|im_end|>z <|eot_id|><|end|> \n w",
    "e\u0301 ſ\u0323\u0307 日本 12345 \ue000\t\x85<0x41> ▁Ġ",
    "a" * 3000 + " " * 3000 + "1" * 3000 + "-\n" * 1500,
)
LONGEST = 200_000  # maximum characters of a text that `described_text` makes
TRAINED = 50_000  # maximum characters of a text that a tokenizer is trained on
RECOUNTED = 4000  # maximum characters of a text whose merges are checked by counting again


# Files


def _small_tokenizer() -> Files:
    """Returns the files of a tokenizer with the embedded tokenizer's first merges, so that a case is quick."""
    vocab = json.loads((embedded_weights() / "vocab.json").read_text())
    small = {token: i for token, i in vocab.items() if i < 300}
    lines = (embedded_weights() / "merges.txt").read_text().split("\n")[: 1 + 300 - 257]
    return {
        "vocab.json": json.dumps(small).encode(),
        "merges.txt": ("\n".join(lines) + "\n").encode(),
        "tokenizer_config.json": b'{"eos_token": "<|endoftext|>", "add_prefix_space": false}',
    }


def _plain_files() -> list[Files]:
    plain = _small_tokenizer()
    decoder = {"300": {"content": "<mask>"}, "0": {"content": "<|endoftext|>"}}
    config = {"added_tokens_decoder": decoder, "add_prefix_space": True, "eos_token": {"content": "<mask>"}}
    more = {"added_tokens.json": b'{"<pad>": 301}', "tokenizer_config.json": json.dumps(config).encode()}
    return [plain, plain | more]


def _plain(folder: Path) -> None:
    _compare(folder, _plain_reference)


def _plain_reference(folder: Path, tokenizer: Tokenizer) -> Any:
    """Returns the library's tokenizer; None if the files add tokens or a prefix space, or lack merges.txt."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    if tokenizer.special or tokenizer.prefix_space or not (folder / "merges.txt").exists():
        return None
    lines = (folder / "merges.txt").read_text().split("\n")
    pairs = [
        tuple(line.rstrip("\r").split(" ")) for line in lines if line.rstrip("\r") and not line.startswith("#version")
    ]
    found = Tokenizer(models.BPE(json.loads((folder / "vocab.json").read_text()), pairs))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return found


def _documents() -> list[Files]:
    """Returns a tokenizer.json of each layout."""
    return [{"tokenizer.json": json.dumps(layout(name)).encode()} for name in LAYOUTS]


def _document(folder: Path) -> None:
    _compare(folder, _library)


def _library(folder: Path, _: object = None) -> Any:
    """Returns the library's tokenizer of a tokenizer.json, without dropout; None if the library refuses the file."""
    from tokenizers import Tokenizer

    document = json.loads((folder / "tokenizer.json").read_bytes())
    document["model"]["dropout"] = None
    document |= {"truncation": None, "padding": None, "post_processor": None}
    try:
        found = Tokenizer.from_str(json.dumps(document))
    except BaseException as error:  # a panic is not an Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return None
    if EOS in found.get_vocab():  # glgpt never splits this token if the vocabulary has it
        found.add_special_tokens([EOS])
    return found


def _compare(folder: Path, reference_for: Any) -> None:
    """Reads the tokenizer, encodes and decodes `TEXTS`, and compares the ids with the library's."""
    tokenizer = load_tokenizer(folder, None)
    if tokenizer is None:
        return
    reference = reference_for(folder, tokenizer)
    for text in TEXTS:
        try:
            ids = tokenizer.encode(text)
        except GlgptError:
            continue
        tokenizer.decode(ids)
        if reference:
            _same(ids, reference.encode(text, add_special_tokens=False).ids, text)
    for i in range(min(tokenizer.vocab_size, 400)):
        tokenizer.label(i)


def _same(ours: list[int], others: list[int], text: str) -> None:
    if ours != others:
        at = next(
            (i for i, (a, b) in enumerate(zip(ours, others, strict=False)) if a != b), min(len(ours), len(others))
        )
        raise Difference(f"{text[:40]!r}: from token {at} on {ours[at : at + 4]}, not {others[at : at + 4]}")


# Texts


def described_text(folder: Path, longest: int) -> tuple[dict[str, Any], str]:
    """Returns the description of a text, and the text: its repeated parts, cut off after `longest` characters."""
    try:
        whole = json.loads((folder / "text.parts.json").read_bytes())
        pieces, left = [], longest
        for unit, count in whole["parts"]:
            piece = str(unit)[:left] * min(int(count), 1 + left // max(1, len(str(unit))))
            pieces.append(piece[:left])
            left -= len(pieces[-1])
        return whole, "".join(pieces)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise GlgptError("not a description of a text") from None


_PARTS = [
    ["To be, or not to be", 1],
    [" ", 3],
    ["\ue000", 2],
    ["e\u0301", 2],
    ["<|im_end|>", 1],
    ["12", 4],
    [" the", 9],
]


def _described(**about: Any) -> Files:
    return {"text.parts.json": json.dumps(about | {"parts": _PARTS}).encode()}


def _tokenize(folder: Path) -> None:
    """Checks that a text's ids equal the library's, and decode to the text both at once and token by token."""
    about, text = described_text(folder, LONGEST)
    if about.get("layout") not in list(LAYOUTS):
        raise GlgptError("not a layout")
    document = layout(about["layout"])
    (folder / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = load_tokenizer(folder, None)
    assert tokenizer
    ids = tokenizer.encode(text)
    stream = StreamDecoder(tokenizer)
    if "".join(map(stream.push, ids)) + stream.flush() != tokenizer.decode(ids):
        raise Difference(f"{text[:40]!r} decodes to another text token by token")
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # replaces unpaired surrogates
    if tokenizer.split and not document["normalizer"] and tokenizer.decode(ids) != whole:
        raise Difference(f"{text[:40]!r} decodes to another text")
    _same(ids, _library(folder).encode(whole, add_special_tokens=False).ids, text)


# Training


def _train(folder: Path) -> None:
    """Checks that a tokenizer trained on a text loads, restores the text, and has the merges of a simple trainer."""
    about, text = described_text(folder, TRAINED)
    size = about.get("size")
    if type(size) is not int:
        raise GlgptError("not a size")
    whole = Text.of_string(text)
    expected = merges_by_recounting(text, size) if len(text) <= RECOUNTED else None
    try:
        train_bpe(whole, size, folder / "bpe")
    except GlgptError:
        if expected and len(expected) >= size - MIN_BPE_SIZE >= 0:
            raise Difference(f"training is refused, but {len(expected)} merges can be learned") from None
        raise
    try:
        tokenizer = load_tokenizer(folder / "bpe", size)
        assert tokenizer
        if (found := tokenizer.decode(tokenizer.encode(text))) != text:
            raise Difference(f"{text[:40]!r} decodes to {found[:40]!r}")
    except GlgptError as error:
        raise Difference(f"the trained tokenizer is refused: {error}") from None
    lines = (folder / "bpe/merges.txt").read_text().split("\n")[1:-1]
    if expected is not None and lines != [" ".join(pair) for pair in expected]:
        at = next(
            i for i, (a, b) in enumerate(zip([*lines, ""], [*expected, ("", "")], strict=False)) if a != " ".join(b)
        )
        raise Difference(f"merge {at} is {lines[at : at + 1]}, not {expected[at : at + 1]}")


def merges_by_recounting(text: str, size: int) -> list[tuple[str, str]]:
    """Learns merges by counting all pairs again after each merge.

    Stops at `size` tokens, or if no pair occurs twice. Returns the merges.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    split, words = ByteLevel(add_prefix_space=False), Counter[tuple[str, ...]]()
    for part in text.split(EOS):
        for word, _ in split.pre_tokenize_str(part):
            words.update(tuple(word[at : at + MAX_WORD_BYTES]) for at in range(0, len(word), MAX_WORD_BYTES))
    letters = sorted(spell(bytes([byte])) for byte in range(256))
    ids = {token: i for i, token in enumerate([EOS, *letters])}
    merges: list[tuple[str, str]] = []
    while len(ids) < size:
        pairs = Counter[tuple[str, str]]()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], ids[pair[0]], ids[pair[1]]), default=None)
        if best is None or pairs[best] < 2:
            break
        merges.append(best)
        ids.setdefault("".join(best), len(ids))
        merged = Counter[tuple[str, ...]]()
        for word, count in words.items():
            merged[_merged(word, best)] += count
        words = merged
    return merges


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    if pair not in set(pairwise(word)):
        return word
    found: list[str] = []
    at = 0
    while at < len(word):
        step = 2 if word[at : at + 2] == pair else 1
        found.append("".join(word[at : at + step]))
        at += step
    return tuple(found)


TOKENIZERS = [
    Parser("tokenizer", _plain_files, _plain),
    Parser("tokenizer-json", _documents, _document, short=300),
    Parser("tokenizer-text", lambda: [_described(layout=name) for name in LAYOUTS], _tokenize, short=30),
    Parser("bpe-training", lambda: [_described(size=size) for size in (257, 259, 262)], _train, short=12),
]
