"""Encodes text to token ids and decodes them: byte-level BPE on tiktoken's engine."""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tiktoken

from glgpt.errors import FileError, GlgptError, quoted, written
from glgpt.gguf.model_files import file_name, has_file, read_model_json
from glgpt.gguf.splits import BYTE_LEVEL, GPT2, LLAMA3, Split, split_of
from glgpt.system.files import read_json, read_text
from glgpt.text.merge_order import stray_merge
from glgpt.text.runs import parts
from glgpt.text.token_ids import MAX_IDS, MAX_MERGES, MAX_SPECIAL_TOKENS, added_ids, checked_ids

if TYPE_CHECKING:
    from glgpt.text.untrusted.tokenizer_document import Document

COMBINED = "tokenizer.json"
TOKENIZER_EXTRAS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
EOS = "<|endoftext|>"
_ROLES = {f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")}
GPT2_VOCAB_SIZE = 50257  # a model with this vocabulary size and without tokenizer files gets GPT-2's tokenizer
_SHOWN = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_LABEL_WIDTH = 14


def _byte_letters() -> dict[str, int]:
    # vocab.json has one visible letter for each byte: its Latin-1 character if printable, else a letter from U+0100 on.
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


LETTER_BYTE = _byte_letters()
_LETTER_CODES = {ord(letter): byte for letter, byte in LETTER_BYTE.items()}
_LETTERS = sorted(LETTER_BYTE, key=LETTER_BYTE.__getitem__)  # by the byte that each represents


class Tokenizer:
    """Encodes and decodes text; ids run from 0 to `vocab_size` - 1, and some may have no token."""

    def __init__(
        self,
        tokens: Mapping[int, bytes],
        special: Mapping[str, int],
        ordinary: Callable[[str], list[int]],
        vocab_size: int,
        eos: int | None,
        prefix_space: bool = False,
        ranks: Sequence[tuple[bytes, int]] = (),
        split: Split | None = GPT2,
    ) -> None:
        """Stores the vocabulary: `tokens` maps ids to bytes, and `special` maps special tokens, never split, to ids.

        `ordinary` encodes the text between special tokens. `ranks` and `split` describe what `ordinary` does, for other
        engines such as the page's. `ranks` has a token's bytes and its id (-1: none) for each rank: first the single
        bytes, then the merges in order. `split` is the rule that splits a text into words; None: only `ordinary` knows
        the rule. With `prefix_space`, `ordinary` adds a space before a text that does not begin with one.
        """
        self.ranks, self.split = ranks, split
        self.spelled: tuple[Mapping[str, int], Sequence[tuple[str, str]]] | None = None  # vocab and merges of the files
        self.prompt_prefix, self.prompt_suffix = list[int](), list[int]()  # ids that `prompt` adds around a text
        # Texts in `special` that stand for ordinary text, such as runs of blanks: any text may contain them.
        self.plain = frozenset[str]()
        self.vocab_size, self.eos, self.prefix_space = vocab_size, eos, prefix_space
        self._tokens, self._ordinary = tokens, ordinary
        self.special = dict(sorted(special.items(), key=lambda token: token[1]))  # the same order in each run
        self._is_special = _any_of(special)

    def document(self) -> dict[str, Any]:
        """Returns a tokenizer.json for the page."""
        assert self.split
        vocab, merges = self.spelled or spelled_of([token for token, _ in self.ranks])
        added = [
            {"content": text, "id": token, "special": text not in self.plain} for text, token in self.special.items()
        ]
        model = {"type": "BPE", "vocab": dict(vocab), "merges": [f"{left} {right}" for left, right in merges]}
        split = self.split.pre_tokenizer(self.prefix_space)
        return {
            "added_tokens": added, "normalizer": None, "pre_tokenizer": split, "decoder": BYTE_LEVEL, "model": model,
        }  # fmt: skip

    def encode(self, text: str) -> list[int]:
        """Encodes `text`; each special token in it becomes a single id.

        Raises GlgptError if the vocabulary lacks a byte of the text, or if an id is beyond the model's vocabulary.
        """
        return self._around(self._is_special, text)

    def encode_ordinary(self, text: str) -> list[int]:
        """Encodes `text`, treating special tokens that are not in `plain` as ordinary text.

        Raises GlgptError as `encode` does.
        """
        return self._around(_any_of(self.plain), text)

    def _around(self, single: re.Pattern[str] | None, text: str) -> list[int]:
        """Encodes `text`; each special token in it that `single` matches becomes a single id."""
        ids: list[int] = []
        start = 0
        for match in single.finditer(text) if single else ():
            ids += self._ordinary(text[start : match.start()])
            ids.append(self.special[match[0]])
            start = match.end()
        return self.checked(ids + self._ordinary(text[start:]))

    def prompt(self, text: str) -> list[int]:
        """Encodes a prompt: `text` with the special tokens that the tokenizer adds around a text.

        Raises GlgptError as `encode` does.
        """
        return self.checked(self.prompt_prefix + self.encode(text) + self.prompt_suffix)

    def checked(self, ids: list[int]) -> list[int]:
        """Returns the ids unchanged. Raises GlgptError for an id beyond the model's vocabulary."""
        if max(ids, default=0) >= self.vocab_size:
            beyond = f"{self.label(max(ids))!r} (id {max(ids)})"
            raise GlgptError(f"the text holds {beyond}; the model's vocabulary ends at {self.vocab_size - 1}")
        return ids

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes of an id; they are empty if the id has no token, as in a padded vocabulary.

        Raises GlgptError for an id outside the vocabulary.
        """
        found = self._tokens.get(token)
        if found is None and not 0 <= token < self.vocab_size:
            raise GlgptError(f"id {token} is outside the vocabulary; ids run from 0 to {self.vocab_size - 1}")
        return found or b""

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Returns the bytes of all ids, joined. Raises GlgptError for an id outside the vocabulary."""
        return b"".join(self.token_bytes(token) for token in ids)

    def decode(self, ids: Iterable[int]) -> str:
        """Decodes ids to text; invalid UTF-8 becomes U+FFFD. Raises GlgptError as `token_bytes` does."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def label(self, token: int) -> str:
        r"""Returns a short, printable label of a token: blanks as `·`, a newline as `⏎`, incomplete bytes as `\xe2`."""
        data = self.token_bytes(token)
        if not data:
            return f"[{token}]"
        text = "".join(_SHOWN.get(char, char) for char in data.decode("utf-8", errors="backslashreplace"))
        text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
        return text if len(text) <= _LABEL_WIDTH else text[: _LABEL_WIDTH - 1] + "…"


def _any_of(texts: Collection[str]) -> re.Pattern[str] | None:
    """Returns a pattern that finds the longest of `texts` at a position; None if there are none."""
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True)))) if texts else None


class StreamDecoder:
    """Decodes ids one at a time; returns a character as soon as its last byte is known."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Returns the text that `token` completes, which may be empty. Raises GlgptError as `token_bytes` does."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def flush(self) -> str:
        """Returns U+FFFD if the last character is incomplete, else "".

        The results of all calls, joined, equal `decode` of all ids.
        """
        return self._decoder.decode(b"", final=True)


class Files(NamedTuple):
    """The content of a folder's tokenizer files."""

    vocab: dict[str, int]
    merges: list[tuple[str, str]]
    added: dict[str, int]
    prefix_space: bool
    named: Mapping[str, str]  # by role: see `named_tokens`
    source: Path  # the file that holds the merges, for messages
    split: Split = GPT2
    around: tuple[Sequence[int], Sequence[int]] = ((), ())  # ids before and after a prompt
    plain: frozenset[str] = frozenset()  # added tokens that are not special
    ordered: bool = False  # True if `stray_merge` has accepted the merges


def load_tokenizer(folder: Path, vocab_size: int | None) -> Tokenizer | None:
    """Loads the tokenizer of a checkpoint's folder: a BPE in tokenizer.json, or else vocab.json and merges.txt.

    `folder` may also be a GGUF file, which holds the tokenizer itself.

    `vocab_size` is the model's vocabulary size. If it is None (no model), the largest id in the files determines the
    size.

    If the folder has no such files, returns GPT-2's tokenizer if `vocab_size` is `GPT2_VOCAB_SIZE` and tiktoken has
    this tokenizer or can download it; otherwise returns None. Also returns None for a tokenizer.json that is not a BPE,
    unless vocab.json and merges.txt exist. Raises GlgptError, naming the file, for a damaged file.
    """
    halves = [folder / name for name in ("vocab.json", "merges.txt")]
    plain = all(half.exists() for half in halves)
    # tokenizer.json takes precedence: the other files do not describe how SmolLM2 or Qwen2 split a text.
    if has_file(folder, COMBINED):
        found = _read_combined(folder, vocab_size)
        if found or not plain:
            return found
    if not plain and any(half.exists() for half in halves):
        missing = next(half for half in halves if not half.exists())
        raise FileError(f"{quoted(missing, 300)} is missing; a tokenizer needs both vocab.json and merges.txt")
    if not plain:
        return gpt2_tokenizer() if vocab_size == GPT2_VOCAB_SIZE else None
    return _build(plain_files(folder), vocab_size)


def gpt2_tokenizer() -> Tokenizer | None:
    """Returns GPT-2's tokenizer from tiktoken; None if it is not cached and cannot be downloaded."""
    try:
        encoding = tiktoken.get_encoding("gpt2")
    except Exception:  # no cache and no network: the model still runs on ids
        return None
    end = encoding.eot_token
    tokens = {i: encoding.decode_single_token_bytes(i) for i in range(encoding.n_vocab)}
    ranks = [(token, i) for i, token in tokens.items() if i != end]
    return Tokenizer(tokens, {EOS: end}, bounded(encoding), encoding.n_vocab, end, ranks=ranks)


def bounded(engine: tiktoken.Encoding) -> Callable[[str], list[int]]:
    """Returns a function that encodes text without special tokens, and divides runs on which tiktoken would panic."""
    return lambda text: [token for part in parts(text) for token in engine.encode_ordinary(part)]


def plain_files(folder: Path) -> Files:
    """Reads vocab.json, merges.txt and the configuration of a folder. Raises FileError for a damaged file."""
    vocab, source = folder / "vocab.json", folder / "merges.txt"
    text = read_text(source)
    if text.count("\n") > MAX_MERGES + 1:
        raise FileError(f"{quoted(source, 300)} has more than {MAX_MERGES:,} lines")
    merges = []
    for number, line in enumerate(text.split("\n"), 1):  # splitlines would split at U+0085 too
        words = line.rstrip("\r").split(" ")
        if words != [""] and not line.startswith("#version"):
            if len(words) != 2 or not all(words):
                raise FileError(f"{quoted(source, 300)}, line {number}: {written(line)} is not a pair of tokens")
            merges.append((words[0], words[1]))
    numbered = dict(checked_ids(_optional_json(folder, "added_tokens.json"), folder / "added_tokens.json"))
    config = _optional_json(folder, "tokenizer_config.json")
    decoder = config.get("added_tokens_decoder")
    for token, about in decoder.items() if isinstance(decoder, dict) else ():
        if token.isdecimal() and isinstance(about, dict) and isinstance(about.get("content"), str):
            numbered[about["content"]] = int(token) if len(token) < 10 else MAX_IDS
    prefix_space = config.get("add_prefix_space") is True
    checked_ids(numbered, folder / "tokenizer_config.json")
    ids = checked_ids(read_json(vocab), vocab)
    added = added_ids(ids, sorted(numbered, key=numbered.__getitem__))
    named, known = named_tokens(folder), ids | added
    around = [
        [known[token]] if config.get(f"add_{role}") is True and (token := named.get(role, EOS)) in known else []
        for role in ("bos_token", "eos_token")
    ]
    return Files(ids, merges, added, prefix_space, named, source, around=(around[0], around[1]))


def _read_combined(folder: Path, vocab_size: int | None) -> Tokenizer | None:
    """Loads the tokenizer of a tokenizer.json; returns None if it is not a BPE."""
    from glgpt.text.hf_tokenizer import HFTokenizer  # a circular import at the top of this module
    from glgpt.text.untrusted.tokenizer_document import checked_document  # slow to import: pydantic

    document = checked_document(read_model_json(folder, COMBINED), file_name(folder, COMBINED))
    if document is None:
        return None
    named = named_tokens(folder)
    files = _on_tiktoken(document, named)
    return _build(files, vocab_size) if files else HFTokenizer(document, vocab_size, named)


def _on_tiktoken(document: Document, named: Mapping[str, str]) -> Files | None:
    """Converts a tokenizer.json for tiktoken; returns None if tiktoken cannot run the tokenizer.

    Tiktoken runs a byte-level BPE without a normalizer. Its split, the rule that divides a text into words, must be in
    `gguf.splits`, its added tokens must have no options for the text around them, and its merges must pass
    `stray_merge`. Those of Llama 3's tokenizer.json do not, because it has several merges for most tokens.
    """
    whole, found = document.whole, split_of(document.dump("pre_tokenizer"))
    if found is None or document.dump("normalizer") or whole.model.byte_fallback:
        return None
    if whole.model.ignore_merges != (found[0] is LLAMA3) or any(
        token.lstrip or token.rstrip or token.single_word for token in whole.added_tokens
    ):
        return None
    vocab, added = dict(document.vocab), dict(document.added)
    if whole.model.ignore_merges and vocab.keys() - added.keys() - set(named.values()) - LETTER_BYTE.keys() != {
        left + right for left, right in document.merges
    }:
        return None  # with `ignore_merges`, a word that no merge makes is a single token; tiktoken would divide it
    if stray_merge(dict.fromkeys((letter_bytes(left), letter_bytes(right)) for left, right in document.merges)):
        return None
    source, plain = document.path, document.plain - set(named.values())
    return Files(vocab, document.merges, added, found[1], named, source, found[0], document.around, plain, ordered=True)


def _optional_json(folder: Path, name: str) -> dict[str, Any]:
    return read_model_json(folder, name) if has_file(folder, name) else {}


def named_tokens(folder: Path) -> dict[str, str]:
    """Returns the special tokens of the configuration by role: `bos_token`, `eos_token` and so on."""
    found: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):  # the later file takes precedence
        config = _optional_json(folder, name)
        for role in _ROLES & config.keys():
            token = config[role]
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) and token:
                found[role] = token
    return found


def spell(token: bytes) -> str:
    """Returns a token's bytes in the letters of vocab.json."""
    return "".join(_LETTERS[byte] for byte in token)


def spelled_of(tokens: Sequence[bytes]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Returns the ids and the merges of `tokens` (in training order), with tokens written in vocab.json's letters."""
    return {spell(token): i for i, token in enumerate(tokens)}, [(spell(a), spell(b)) for a, b in merges_of(tokens)]


def merges_of(tokens: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Returns the merges that made `tokens`, which are in training order.

    The merge of a token is the last one that encoding the token's bytes applies; a single byte has none.
    """
    rank = {token: i for i, token in enumerate(tokens)}
    merges = []
    for token in tokens:
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            best = min(range(len(parts) - 1), key=lambda i: rank.get(parts[i] + parts[i + 1], sys.maxsize))
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append((parts[0], parts[1]))
    return merges


def letter_bytes(token: str) -> bytes:
    """Converts a token of vocab.json to its bytes; a token with other letters is encoded as UTF-8."""
    try:
        return codecs.charmap_encode(token, "strict", _LETTER_CODES)[0]
    except UnicodeEncodeError:
        return token.encode("utf-8", errors="replace")


def _build(files: Files, vocab_size: int | None) -> Tokenizer:
    merges: dict[tuple[bytes, bytes], int] = {}
    source = quoted(files.source, 300)
    ids = [files.vocab.get(letter, -1) for letter in sorted(LETTER_BYTE, key=LETTER_BYTE.__getitem__)]
    spelled = {text: letter_bytes(text) for text in files.vocab}
    for rank, (left, right) in enumerate(files.merges, len(ids)):
        whole = files.vocab.get(left + right)
        if whole is None or left not in spelled or right not in spelled:
            pair = f"{written(left)} {written(right)}"
            raise FileError(f"{source}: the merge {pair} needs a token that the vocabulary lacks")
        if merges.setdefault((spelled[left], spelled[right]), rank) != rank:
            raise FileError(f"{source}: the merge {written(left)} {written(right)} appears twice")
        ids.append(whole)
    if not files.ordered and (stray := stray_merge(merges)):
        pair = " ".join(written(half.decode("utf-8", errors="backslashreplace")) for half in stray)
        raise FileError(f"{source}: the merge {pair} is out of order; BPE training cannot produce this list")
    # tiktoken takes ranks instead of ids: first the bytes by value, then the joined bytes of the merges in order.
    ranks = {bytes([byte]): byte for byte in range(256)} | {a + b: rank for (a, b), rank in merges.items()}
    split = files.split.pattern
    ranked = bounded(tiktoken.Encoding("bpe", pat_str=split, mergeable_ranks=ranks, special_tokens={}))

    def ordinary(text: str) -> list[int]:
        if files.prefix_space and text and not text.startswith(" "):
            text = " " + text
        found = [ids[rank] for rank in ranked(text)]
        if -1 in found:
            absent = next(byte for byte in text.encode("utf-8", errors="replace") if ids[byte] == -1)
            raise GlgptError(f"{source}: the vocabulary has no token for byte 0x{absent:02x} of the text")
        return found

    named = {text: files.vocab[text] for text in {EOS, *files.named.values()} & files.vocab.keys()}
    special = {text: token for text, token in (named | files.added).items() if text}
    if len(special) > MAX_SPECIAL_TOKENS:
        raise FileError(f"{source}: there are more than {MAX_SPECIAL_TOKENS:,} added tokens")
    tokens = {token: spelled[text] for text, token in files.vocab.items()}
    tokens |= {token: text.encode("utf-8", errors="replace") for text, token in special.items()}
    size = vocab_size or 1 + max(tokens, default=0)
    eos = special.get(files.named.get("eos_token", EOS))
    by_rank = list(zip(ranks, ids, strict=True))
    tokenizer = Tokenizer(tokens, special, ordinary, size, eos, files.prefix_space, by_rank, files.split)
    tokenizer.prompt_prefix, tokenizer.prompt_suffix = map(list, files.around)
    tokenizer.spelled = files.vocab, files.merges
    tokenizer.plain = files.plain
    return tokenizer
